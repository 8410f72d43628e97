"""Published layouts on tiny random checkpoints of the same architecture: adapter against plain inference code."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from stepward.prm.errors import ModelError
from stepward.prm.models.inputs import InputRefused
from stepward.prm.models.load import load
from stepward.prm.types import Problem

SIZES = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + "
    "m['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
PROBLEM, STEPS = "What is 2+2?", ["Two and two make four.", "So the answer is 4."]


def byte_level(
    folder: Path, specials: list[str], merges: list[tuple[str, str]], config: dict[str, object]
) -> int:
    """A byte-level tokenizer as Qwen and Llama 3 have one; returns its size."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for a, b in merges:
        vocab[a + b] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in specials])
    bos = config.get("bos_token")
    if isinstance(bos, str) and config.get("add_bos_token"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config})
    )
    return tokenizer.get_vocab_size()


def renamed(folder: Path, architecture: str, head: dict[str, torch.Tensor]) -> None:
    """Give a saved causal LM the architecture name and the head's tensors of a published reward model."""
    tensors = {
        k: v for k, v in load_file(folder / "model.safetensors").items() if not k.startswith("lm_head")
    }
    save_file({**tensors, **head}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = [architecture]
    config["auto_map"] = {"AutoModel": "modeling.Remote", "AutoConfig": "configuration.Remote"}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def qwen_prm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "Qwen2.5-Math-PRM-tiny"
    torch.manual_seed(0)
    folder.mkdir()
    specials = ["<|im_start|>", "<|im_end|>", "<extra_0>"]
    config = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    size = byte_level(folder, specials, [(".", "Ċ")], config)
    Qwen2ForCausalLM(Qwen2Config(vocab_size=size, **SIZES)).save_pretrained(folder)
    head = {
        "score.0.weight": torch.randn(16, 16), "score.0.bias": torch.randn(16),
        "score.2.weight": torch.randn(2, 16), "score.2.bias": torch.randn(2),
    }  # fmt: skip
    renamed(folder, "Qwen2ForProcessRewardModel", head)
    return folder


def test_qwen_math_prm_reads_two_classes_at_extra_0(qwen_prm: Path):
    system = "Please reason step by step, and put your final answer within \\boxed{}."
    turns = [("system", system), ("user", PROBLEM), ("assistant", "<extra_0>".join(STEPS) + "<extra_0>")]
    text = "".join(f"<|im_start|>{r}\n{c}<|im_end|>\n" for r, c in turns)
    tokenizer = AutoTokenizer.from_pretrained(qwen_prm)
    ids = tokenizer(text, return_tensors="pt").input_ids
    lm = AutoModelForCausalLM.from_pretrained(qwen_prm)
    w = load_file(qwen_prm / "model.safetensors")
    with torch.no_grad():
        hidden = lm.model(ids).last_hidden_state[0]
        raw = (
            torch.relu(hidden @ w["score.0.weight"].T + w["score.0.bias"]) @ w["score.2.weight"].T
            + w["score.2.bias"]
        )
        expected = raw.softmax(-1)[ids[0] == tokenizer.encode("<extra_0>")[0]][:, 1].tolist()
    model = load(qwen_prm)
    assert len(expected) == 2
    assert model.score([PROBLEM], [STEPS])[0] == pytest.approx(expected, abs=1e-5)


def test_a_step_that_spells_the_marker_is_refused_by_name(qwen_prm: Path):
    with pytest.raises(InputRefused, match=r"step 1 .* 2 times"):
        load(qwen_prm).score([PROBLEM], [["fine", "two<extra_0> markers"]])


def test_a_checkpoint_without_its_head_is_an_error(qwen_prm: Path, tmp_path: Path):
    folder = tmp_path / "broken"
    folder.mkdir()
    for path in qwen_prm.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("score.2.bias")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"missing \['linear\.bias'\]"):
        load(folder)


def test_skywork_reads_a_scalar_at_the_newline_after_each_step(tmp_path: Path):
    folder = tmp_path / "Skywork-o1-Open-PRM-tiny"
    torch.manual_seed(1)
    folder.mkdir()
    config = {"bos_token": "<|endoftext|>", "add_bos_token": True, "eos_token": "<|endoftext|>"}
    # This tokenizer merges '.' and newline: the layout encodes them apart all the same.
    size = byte_level(folder, ["<|endoftext|>"], [(".", "Ċ")], config)
    Qwen2ForCausalLM(Qwen2Config(vocab_size=size, **SIZES)).save_pretrained(folder)
    head = {"v_head.summary.weight": torch.randn(1, 16), "v_head.summary.bias": torch.randn(1)}
    renamed(folder, "Qwen2ForPrmModel", head)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode("<|endoftext|>" + PROBLEM + "\n", add_special_tokens=False)
    newline = tokenizer.encode("\n", add_special_tokens=False)[-1]
    ends: list[int] = []
    for step in STEPS:
        ids += [*tokenizer.encode(step, add_special_tokens=False), newline]
        ends.append(len(ids) - 1)
    lm = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        hidden = lm.model(torch.tensor([ids])).last_hidden_state[0, ends]
        expected = torch.sigmoid(hidden @ head["v_head.summary.weight"].T + head["v_head.summary.bias"])[:, 0]
    assert load(folder).score([PROBLEM], [STEPS])[0] == pytest.approx(expected.tolist(), abs=1e-5)


def sentencepiece(folder: Path, words: list[str]) -> int:
    """A tokenizer as Llama and Mistral have one: a space is a letter, and one stands before the first word."""
    letters = [*sorted(set("".join(words) + PROBLEM + "".join(STEPS) + "\n▁Step12: ")), "▁"]
    vocab: dict[str, int] = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for letter in letters:
        vocab.setdefault(letter, len(vocab))
    merges: list[tuple[str, str]] = []
    for word in words:
        for i in range(1, len(word)):
            pair = (word[:i], word[i])
            vocab.setdefault(word[: i + 1], len(vocab))
            if pair not in merges:
                merges.append(pair)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(vocab)


def test_math_shepherd_reads_plus_against_minus_at_the_marker(tmp_path: Path):
    folder = tmp_path / "math-shepherd-mistral-tiny"
    torch.manual_seed(2)
    folder.mkdir()
    size = sentencepiece(folder, ["▁ки", "▁+", "▁-"])
    MistralForCausalLM(MistralConfig(vocab_size=size, **SIZES)).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    steps = [f"Step {i + 1}: {s}" for i, s in enumerate(STEPS)]
    text = f"{PROBLEM} {steps[0]} ки\n{steps[1]} ки"
    ids = tokenizer(text, return_tensors="pt").input_ids
    candidates = tokenizer.encode("+ -", add_special_tokens=False)
    tag = tokenizer.encode("ки", add_special_tokens=False)[-1]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(ids).logits[0][:, candidates]
    expected = logits.softmax(-1)[:, 0][ids[0] == tag].tolist()
    assert len(expected) == 2
    model = load(folder)
    assert model.prm.inputs.encode(problem(PROBLEM), steps).token_ids == tuple(ids[0].tolist())
    assert model.score([PROBLEM], [steps])[0] == pytest.approx(expected, abs=1e-5)


def test_a_tokenizer_that_splits_the_marker_is_refused_with_the_ids(tmp_path: Path):
    folder = tmp_path / "math-shepherd-broken"
    folder.mkdir()
    size = sentencepiece(folder, ["▁+", "▁-", "ки"])
    MistralForCausalLM(MistralConfig(vocab_size=size, **SIZES)).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"' ки' as one token .* ids \["):
        load(folder)


def test_rlhflow_reads_where_the_answer_to_each_step_is_predicted(tmp_path: Path):
    folder = tmp_path / "Llama3.1-8B-PRM-Deepseek-Data"
    torch.manual_seed(3)
    folder.mkdir()
    specials = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    config = {
        "chat_template": LLAMA3, "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "add_bos_token": True,
    }  # fmt: skip
    size = byte_level(folder, specials, [("Ċ", "Ċ")], config)
    LlamaForCausalLM(LlamaConfig(vocab_size=size, **SIZES)).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lm = AutoModelForCausalLM.from_pretrained(folder)
    plus, minus = (tokenizer.encode(c, add_special_tokens=False)[-1] for c in "+-")
    expected: list[float] = []
    turns: list[dict[str, str]] = []
    for i, step in enumerate(STEPS):
        turns += [
            {"role": "user", "content": f"{PROBLEM} {step}" if i == 0 else step},
            {"role": "assistant", "content": "+"},
        ]
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.no_grad():
            # The last ids are '+', end of turn: '+' is predicted at the third from the end.
            expected.append(lm(ids).logits[0, -3, [plus, minus]].softmax(-1)[0].item())
    assert load(folder).score([PROBLEM], [STEPS])[0] == pytest.approx(expected, abs=1e-5)


def test_an_implicit_model_scores_by_the_ratio_to_its_reference(tmp_path: Path):
    folders = [tmp_path / "EurusPRM-tiny", tmp_path / "reference"]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        folder.mkdir()
        config = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
        size = byte_level(folder, ["<|im_start|>", "<|im_end|>"], [], config)
        Qwen2ForCausalLM(Qwen2Config(vocab_size=size, **SIZES)).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    prompt = f"<|im_start|>user\n{PROBLEM}<|im_end|>\n<|im_start|>assistant\n"
    before = len(tokenizer.encode(prompt))
    ids = tokenizer(prompt + STEPS[0] + "\n\n" + STEPS[1], return_tensors="pt").input_ids
    ends = [len(tokenizer.encode(prompt + STEPS[0] + "\n\n")) - 1, ids.shape[1] - 1]
    sums = []
    for folder in folders:
        with torch.no_grad():
            logp = AutoModelForCausalLM.from_pretrained(folder)(ids).logits[0].log_softmax(-1)
        token = logp[:-1].gather(1, ids[0, 1:, None])[:, 0]
        sums.append(torch.stack([token[before - 1 : end].sum() for end in ends]))
    expected = torch.sigmoid(0.001 * (sums[0] - sums[1])).tolist()
    with pytest.raises(ModelError, match="reference"):
        load(folders[0])
    model = load(folders[0], reference=folders[1])
    assert model.score([PROBLEM], [STEPS])[0] == pytest.approx(expected, abs=1e-6)


def test_an_unknown_checkpoint_says_which_adapters_there_are(tmp_path: Path):
    folder = tmp_path / "something"
    folder.mkdir()
    LlamaForCausalLM(LlamaConfig(vocab_size=8, **SIZES)).save_pretrained(folder)
    with pytest.raises(ModelError, match="math_shepherd"):
        load(folder)
    with pytest.raises(ModelError, match="not a folder"):
        load("no-such-folder")


def problem(text: str) -> Problem:
    return Problem("", text)
