"""Published critics on tiny random checkpoints: prompts and read-outs against plain transformers code."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from stepward.prm.errors import ModelError
from stepward.prm.models.load import load, load_critic
from stepward.prm.models.thinkprm import ThinkFormat
from stepward.prm.policy import Execution, SampleRequest
from stepward.prm.tokenizer import JsonTokenizer, load_tokenizer
from stepward.prm.types import FinishReason, PolicyInfo, Prefix, Rollout, TokenIds

# The layout of the DeepSeek-R1-Distill-Qwen tokenizers, from which both families were trained.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}{{ '<|User|>' + m['content'] }}"
    "{% else %}{{ '<|Assistant|>' + m['content'] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)
PROBLEM, STEPS = "What is 2+2?", ["Two and two make four.", "So the answer is 5."]
SYSTEM = (
    "You are a math teacher. Your task is to review and critique the paragraphs in solution step by step."
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("critics") / "tiny"
    folder.mkdir()
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(s, special=True) for s in ("<|begin|>", "<|end|>", "<|User|>", "<|Assistant|>")]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 2048,
    }  # fmt: skip
    Qwen2ForCausalLM(Qwen2Config(vocab_size=tokenizer.get_vocab_size(), **sizes)).save_pretrained(folder)
    return folder


class Engine:
    """Writes prepared texts and takes likelihoods from the checkpoint, by one plain forward pass each."""

    context_length = 2048
    deterministic = True

    def __init__(self, folder: Path, *texts: str) -> None:
        self.info = PolicyInfo("tiny", "0", "plain")
        self.tokenizer: JsonTokenizer = load_tokenizer(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder)
        self.texts = list(texts)
        self.seen: list[str] = []

    def _shown(self, token_id: int) -> str:
        # ``decode`` leaves end tokens out; all other ids are one byte or one special token.
        return "<|end|>" if token_id in self.tokenizer.eos_ids else self.tokenizer.decode((token_id,))

    async def sample(self, request: SampleRequest) -> Rollout:
        prefix = request.prefix
        self.seen.append("".join(map(self._shown, (*prefix.prompt_ids, *prefix.solution_ids))))
        text = self.texts.pop(0)
        ids = self.tokenizer.encode(text)
        return Rollout("p", 0, request.index, request.seed, ids, text, FinishReason.STOP)

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        ids = (*prefix.prompt_ids, *prefix.solution_ids, *continuation)
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        first = len(ids) - len(continuation)
        return tuple(float(logits[first + k - 1, i]) for k, i in enumerate(continuation))

    async def close(self) -> None: ...


class Python:
    """Answers everything with 4."""

    async def run(self, code: str, *, stdin: str = "", timeout_s: float = 5.0) -> Execution:
        return Execution("ok", "4\n", "", 0.0)


def chance_of_first(folder: Path, text: str, first: str, second: str) -> float:
    """P(first) / (P(first) + P(second)) after the text, by transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    before = tokenizer(text, add_special_tokens=False)["input_ids"]
    totals = []
    for word in (first, second):
        own = tokenizer(word, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([[*before, *own]])).logits[0].log_softmax(-1)
        totals.append(sum(logits[len(before) + k - 1, i] for k, i in enumerate(own)))
    return float(torch.softmax(torch.stack(totals), 0)[0])


def rendered(folder: Path, messages: list[dict[str, str]], *, generate: bool) -> str:
    return AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, tokenize=False, add_generation_prompt=generate
    )


def test_thinkprm_reads_the_word_in_each_box_of_one_chain(checkpoint: Path):
    chain = "\nStep 1: fine, \\boxed{\\text{correct}}\nStep 2: no: \\boxed{incorrect}\n</think>"
    engine = Engine(checkpoint, chain)
    model = load_critic(checkpoint, engine, adapter="thinkprm")
    scores = model.score([PROBLEM], [STEPS])[0]
    question = (
        f"You are given a math problem and a proposed step-by-step solution:\n\n[Math Problem]\n\n{PROBLEM}\n\n"
        f"[Solution]\n\nStep 1: {STEPS[0]}\nStep 2: {STEPS[1]}\n\nReview and critique each step in the proposed "
        "solution to determine whether each step is correct. If the solution is incomplete, only verify the provided "
        "steps."
    )
    prompt = rendered(checkpoint, [{"role": "user", "content": question}], generate=True)
    opened = prompt + "\nLet's verify step by step:"
    assert engine.seen == [opened]
    for score, end in zip(scores, ("\\boxed{\\text{", "no: \\boxed{"), strict=True):
        before = opened + chain[: chain.index(end) + len(end)]
        assert score == pytest.approx(chance_of_first(checkpoint, before, "correct", "incorrect"), abs=1e-5)


def test_thinkprm_boxes_count_in_order_up_to_the_first_incorrect_one():
    text = "\\boxed{4} is \\boxed{correct}, then \\boxed{incorrect}, \\boxed{correct}"
    assert [v and v[1] for v in ThinkFormat().find(text, 4)] == [True, False, None, None]
    assert [v and v[1] for v in ThinkFormat().find(text, 1)] == [True]


def test_genprm_judges_each_step_after_its_program_and_reads_its_own_critiques(checkpoint: Path):
    first = [
        "It adds.\n</analyze>\n",
        "print(2+2)\n```\n",
        "</verify>\n<output>\n**Judgement**: $\\boxed{Yes}$\n</output>\n",
    ]
    second = ["It does not.\n</analyze>\n", "x = 1", "unused"]
    engine = Engine(checkpoint, *first, *second)
    model = load_critic(checkpoint, engine, adapter="genprm", executor=Python())
    scores = model.score([PROBLEM], [STEPS])[0]
    one = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"Question: {PROBLEM}\n\n{STEPS[0]}"},
    ]
    opening = "<analyze>\nLet's analyze the Paragraph {} step by step: "
    check = "<verify>\nLet's use python code to find any potential error:\n```python\n"
    shown = "[Code Output]\n\n```\n4\n```\n"
    start = rendered(checkpoint, one, generate=False) + opening.format(1)
    assert engine.seen[0] == start
    assert engine.seen[1] == start + first[0] + check
    assert engine.seen[2] == start + first[0] + check + first[1] + shown
    box = first[2].index("Yes")
    before = engine.seen[2] + first[2][:box]
    assert scores[0] == pytest.approx(chance_of_first(checkpoint, before, "Yes", "No"), abs=1e-5)
    # The second step's prompt holds the first critique as the assistant's turn.
    critique = engine.seen[2].removeprefix(rendered(checkpoint, one, generate=False)) + first[2]
    two = [*one, {"role": "assistant", "content": critique}, {"role": "user", "content": STEPS[1]}]
    start = rendered(checkpoint, two, generate=False) + opening.format(2)
    assert engine.seen[3] == start
    # No box within the limits: the analysis stands, and the box is opened and read.
    before = start + second[0] + "<output>\n**Judgement**: $\\boxed{"
    assert scores[1] == pytest.approx(chance_of_first(checkpoint, before, "Yes", "No"), abs=1e-5)


def test_genprm_without_an_executor_judges_by_its_analysis(checkpoint: Path):
    engine = Engine(checkpoint, "It adds.\n</analyze>\n", "Sure.")
    model = load_critic(checkpoint, engine, adapter="genprm")
    scores = model.score([PROBLEM], [STEPS])[0]
    before = engine.seen[0] + "It adds.\n</analyze>\n<output>\n**Judgement**: $\\boxed{"
    assert scores[0] == pytest.approx(chance_of_first(checkpoint, before, "Yes", "No"), abs=1e-5)
    # An analysis that ran into its limit is closed before it is judged.
    assert len(engine.seen) == 2
    assert len(scores) == 2


def test_votes_of_several_critiques_are_averaged(checkpoint: Path):
    texts = ["a\n</analyze>\n", "b\n</analyze>\n"]
    engine = Engine(checkpoint, *texts)
    model = load_critic(checkpoint, engine, adapter="genprm", num_samples=2)
    (score,) = model.score([PROBLEM], [STEPS[:1]])[0]
    own = [
        chance_of_first(checkpoint, engine.seen[0] + t + "<output>\n**Judgement**: $\\boxed{", "Yes", "No")
        for t in texts
    ]
    assert score == pytest.approx(sum(own) / 2, abs=1e-5)


def test_a_critic_is_known_by_its_name_and_needs_an_engine(checkpoint: Path, tmp_path: Path):
    named = tmp_path / "GenPRM-7B"
    shutil.copytree(checkpoint, named)
    assert load_critic(named, Engine(checkpoint)).name == "tiny (GenPRM, 1 samples)"
    with pytest.raises(ModelError, match="load_critic"):
        load(named)
    with pytest.raises(ModelError, match="genprm, thinkprm"):
        load_critic(checkpoint, Engine(checkpoint))
