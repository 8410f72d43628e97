"""The embedded policy: its texts, its tokenizer, its training and the checkpoint that ships."""

import json
import random
from importlib.resources import files
from itertools import islice
from pathlib import Path

import pytest

from stepward.prm.word_problems.phrases import THEMES
from stepward.prm.word_problems.problems import Split, generate, parse
from stepward.prm.word_problems.solutions import check_steps, first_wrong_step
from stepward.training.embedded_policy import build_tokenizer, render_prompt, train_embedded
from stepward.training.misreadings import LEADS, TAILS, write_solution, write_step

SHIPPED = Path(str(files("stepward.labeling.policies") / "embedded_checkpoint"))


def texts(num: int) -> list[str]:
    rng = random.Random(0)
    problems = islice(generate(Split.TRAIN, 0), num)
    return [render_prompt(p.text) + "\n".join(write_solution(parse(p.text), rng)) for p in problems]


# ---- Texts -------------------------------------------------------------------------------------------------


def test_without_misreadings_every_written_solution_is_right() -> None:
    rng = random.Random(1)
    for p in islice(generate(Split.TRAIN, 1), 200):
        assert check_steps(p, write_solution(parse(p.text), rng, rate_scale=0)).is_right


def test_the_wording_strewn_in_is_harmless_to_the_checker() -> None:
    p = next(generate(Split.TRAIN, 2))
    story = parse(p.text)
    left, op, right, result = story.equations[0]
    for words in LEADS:
        assert first_wrong_step(p, [f"{words}{left} {op} {right} = {result}"]) is None
    for words in TAILS:
        assert first_wrong_step(p, [f"{left} {op} {right} = {result}{words}"]) is None


def test_operands_are_swapped_only_where_order_does_not_matter() -> None:
    rng = random.Random(0)
    sums = [write_step(12, "+", 7, 19, rng) for _ in range(400)]
    swapped = sum("7 + 12 = 19" in s for s in sums)
    assert 40 <= swapped <= 120  # a fifth of 400 is 80, standard deviation 8
    assert all("12 - 7 = 5" in write_step(12, "-", 7, 5, rng) for _ in range(50))


def test_a_misread_phrase_is_misread_at_its_rate() -> None:
    statement = "Mia has 12 coins. She keeps one of 3 equal parts. How many coins does Mia have now?"
    phrase = next(p for t in THEMES for p in t.events if p.text == "{P} keeps one of {b} equal parts.")
    story, rng = parse(statement), random.Random(0)
    wrong = sum("The answer is 8." in write_solution(story, rng) for _ in range(1000))
    assert abs(wrong / 1000 - phrase.misread_rate) < 0.06  # 4 standard deviations of 0.016


def test_most_misreadings_are_of_traps() -> None:
    rates = [p.misread_rate for t in THEMES for p in t.events + t.endings if p.misreading is not None]
    plain = [r for r in rates if r < 0.1]
    traps = [r for r in rates if r >= 0.1]
    assert max(plain) <= 0.05
    assert min(traps) >= 0.35


# ---- Tokenizer ---------------------------------------------------------------------------------------------


def test_step_boundaries_are_token_boundaries_and_numbers_are_digits() -> None:
    tokenizer = build_tokenizer(texts(200), 600)
    rng = random.Random(3)
    for p in islice(generate(Split.LABEL, 0), 30):
        steps = write_solution(parse(p.text), rng)
        whole = tokenizer.encode("\n".join(steps), add_special_tokens=False)
        pieces = [s + "\n" for s in steps[:-1]] + steps[-1:]
        assert whole == [i for s in pieces for i in tokenizer.encode(s, add_special_tokens=False)]
        assert tokenizer.decode(whole) == "\n".join(steps)
    for token in tokenizer.get_vocab():
        assert sum(c.isdigit() for c in token) == 0 or len(token) == 1
        assert "Ċ" not in token or token == "Ċ"


def test_any_text_can_be_encoded_and_comes_back() -> None:
    tokenizer = build_tokenizer(texts(50), 400)
    for text in ("naïve 数学 \t 🙂 3.14 ≥ 2\n\n", "Natalia sold clips to 48 of her friends."):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_start_token_comes_once_before_a_prompt() -> None:
    tokenizer = build_tokenizer(texts(50), 400)
    ids = tokenizer.encode("Mia has 12 coins.\n")
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.bos_token_id not in tokenizer.encode("12 + 7 = 19\n", add_special_tokens=False)


# ---- Training ----------------------------------------------------------------------------------------------


def test_the_same_seed_makes_the_same_files_and_another_seed_other_weights(tmp_path: Path) -> None:
    small = {"rounds": ((2, 0.02), (1, 0.02)), "batch_size": 2, "num_problems": 40, "vocab_size": 400}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train_embedded(tmp_path / name, seed=seed, drill_share=0.5, **small)
    names = sorted(f.name for f in (tmp_path / "a").iterdir())
    assert names == [
        "config.json", "generation_config.json", "model.safetensors", "prompt.jinja", "provenance.json",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    weights = [(tmp_path / n / "model.safetensors").read_bytes() for n in "ac"]
    assert weights[0] != weights[1]
    assert json.loads((tmp_path / "c" / "provenance.json").read_text())["seed"] == 1


# ---- What ships --------------------------------------------------------------------------------------------


def test_the_shipped_checkpoint_is_small_and_an_ordinary_hugging_face_folder() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHIPPED, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, local_files_only=True)
    assert tokenizer.is_fast
    assert 0.5e6 <= sum(p.numel() for p in model.parameters()) <= 3e6
    assert sum(f.stat().st_size for f in SHIPPED.iterdir()) <= 6_000_000
    assert {str(p.dtype) for p in model.parameters()} == {"torch.float32"}
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id


def test_the_shipped_provenance_says_how_to_make_it_again() -> None:
    provenance = json.loads((SHIPPED / "provenance.json").read_text())
    assert provenance["script"] == "stepward.training.embedded_policy"
    assert {"script_version", "seed", "rounds", "sharpness", "num_problems"} <= set(provenance)


@pytest.mark.slow
def test_sampled_at_temperature_one_it_solves_between_40_and_75_percent_of_held_out_problems() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHIPPED, padding_side="left", local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, local_files_only=True)
    problems = list(islice(generate(Split.HELD_OUT, 77), 400))
    torch.manual_seed(0)
    right = logic = wrong = 0
    for start in range(0, len(problems), 100):
        batch = problems[start : start + 100]
        inputs = tokenizer([render_prompt(p.text) for p in batch], return_tensors="pt", padding=True)
        inputs.pop("token_type_ids", None)
        out = model.generate(
            **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=120
        )
        solutions = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        for p, text in zip(batch, solutions, strict=True):
            check = check_steps(p, text.split("\n"))
            right += text.endswith(f"The answer is {p.answers[0]}.")
            wrong += check.first_error is not None
            logic += check.kind is not None and check.kind.value in ("logic", "answer")
    assert 0.40 <= right / len(problems) <= 0.75
    assert logic / wrong >= 0.5
