"""Critics: what they read, what they are trained on, and how their verdicts become scores."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch

from stepward.prm.errors import InputError, ModelError
from stepward.prm.models.generative import GenerativeRewardModel
from stepward.prm.models.verdicts import VerdictFormat
from stepward.prm.models.weights import load_causal_lm
from stepward.prm.policy import Execution, SampleRequest
from stepward.prm.prompts import PromptTemplate
from stepward.prm.tokenizer import ByteTokenizer, load_tokenizer
from stepward.prm.types import (
    FinishReason,
    LabeledSolution,
    PolicyInfo,
    Prefix,
    Problem,
    Rollout,
    StepLabel,
    TokenIds,
    Verdict,
    VerdictKind,
)
from stepward.training.generative import (
    critiques,
    rationale,
    train_generative,
    verdict_prompts,
    verdict_reward,
)
from stepward.training.loop import Schedule

Row = Callable[..., LabeledSolution]
PROBLEM = Problem("p", "2+2?")
FORMAT = VerdictFormat()


class Critic:
    """A policy that writes prepared texts in order and finds 'correct' three times as likely as 'wrong'."""

    info = PolicyInfo("critic", "0", "scripted")
    tokenizer = ByteTokenizer()
    context_length = 10_000
    deterministic = True

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.requests: list[SampleRequest] = []
        self.read: list[str] = []

    async def sample(self, request: SampleRequest) -> Rollout:
        self.requests.append(request)
        text = self.texts.pop(0)
        ids = self.tokenizer.encode(text)
        return Rollout("p", 0, request.index, request.seed, ids, text, FinishReason.STOP)

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        self.read.append(self.tokenizer.decode(prefix.solution_ids))
        word = self.tokenizer.decode(continuation)
        return (log(0.6) if word == "correct" else log(0.2), *(0.0 for _ in continuation[1:]))

    async def close(self) -> None: ...


class Python:
    """An executor that answers everything with 4."""

    def __init__(self) -> None:
        self.programs: list[str] = []

    async def run(self, code: str, *, stdin: str = "", timeout_s: float = 5.0) -> Execution:
        self.programs.append(code)
        return Execution("ok", "4\n", "", 0.0)


def test_a_critique_ends_after_the_first_wrong_step():
    got = FORMAT.answer(["fine", "bad", "never"], [1, 0, 0])
    assert got == "Step 1: fine\nVerdict 1: correct\nStep 2: bad\nVerdict 2: wrong\n"
    assert FORMAT.find(got, 3) == [(got.index("correct"), True), (got.index("wrong"), False), None]


def test_a_critic_that_contradicts_itself_has_said_nothing_more():
    text = "Verdict 1: correct\nVerdict 1: wrong\nVerdict 2: correct\n"
    assert FORMAT.find(text, 2) == [(text.index("correct"), True), None]
    assert FORMAT.find("Verdict 2: correct\n", 2) == [None, None]
    # A verdict inside a step's quotation does not start its line.
    assert FORMAT.find("he wrote Verdict 1: correct\n", 1) == [None]


def test_a_score_is_the_share_of_the_right_word_at_the_verdict():
    critic = Critic("Step 1: ok\nVerdict 1: correct\nStep 2: no\nVerdict 2: wrong\n")
    model = GenerativeRewardModel(critic)
    # .6 / (.6 + .2) at each verdict; the third step stands after a wrong one and has its score.
    assert model.score([PROBLEM], [["a", "b", "c"]])[0] == pytest.approx((0.75, 0.75, 0.75))
    assert critic.read[0] == "Step 1: ok\nVerdict 1: "
    assert critic.read[-1].endswith("Verdict 2: ")


def test_votes_are_averaged_and_silence_is_no_vote():
    critic = Critic("Verdict 1: correct\n", "Verdict 1: wrong\n", "hm", "Verdict 1: correct\n")
    model = GenerativeRewardModel(critic, num_samples=4, read_probabilities=False)
    assert model.score([PROBLEM], [["a"]]) == [(pytest.approx(2 / 3),)]
    assert len({r.seed for r in critic.requests}) == 4


def test_no_verdict_at_all_is_an_error_and_never_a_score():
    model = GenerativeRewardModel(Critic("hm", "hm"))
    with pytest.raises(ModelError, match="no verdict on step 0"):
        model.score([PROBLEM], [["a"]])
    assert asyncio.run(model.judge([PROBLEM], [["a"]])) == [(None,)]


async def test_scores_can_be_read_inside_an_event_loop():
    assert GenerativeRewardModel(Critic("Verdict 1: correct\n")).score([PROBLEM], [["a"]])[
        0
    ] == pytest.approx((0.75,))


def test_programs_are_run_and_their_output_is_shown():
    critic = Critic("Step 1: check\n```python\nprint(2+2)\n```\n", "Verdict 1: correct\n")
    python = Python()
    model = GenerativeRewardModel(critic, executor=python, read_probabilities=False)
    assert model.score([PROBLEM], [["a"]]) == [(1.0,)]
    assert python.programs == ["print(2+2)\n"]
    shown = critic.tokenizer.decode(critic.requests[1].prefix.solution_ids)
    assert shown.endswith("```\n\n[Code output: 4]\n")


def test_a_rationale_comes_from_tools_that_agree_with_the_label():
    right = Verdict(VerdictKind.SUPPORTED, "arithmetic", "1", evidence="2 + 2 = 4")
    wrong = Verdict(VerdictKind.REFUTED, "arithmetic", "1", evidence="2 + 2 = 5")
    assert rationale(StepLabel(1, verdicts=(right, wrong))) == "2 + 2 = 4 (arithmetic: holds)"
    assert rationale(StepLabel(0, verdicts=(right, wrong))) == "2 + 2 = 5 (arithmetic: does not hold)"
    assert rationale(StepLabel(0, rationale="because\nso")) == "because so"


def test_rows_with_an_unknown_label_before_the_first_error_are_left_out_and_counted(labeled: Row):
    rows = [
        labeled("a", ["x", "y", "z"], [1, 0, None]),
        labeled("b", ["x", "y"], [1, None]),
        labeled("c", ["x"], [1]),
    ]
    got, left_out = critiques(rows)
    assert [c.solution_id for c in got] == ["a-0", "c-0"]
    assert sum(left_out.values()) == 1
    assert got[0].completion.count("Verdict") == 2


def test_verdict_prompts_are_balanced_and_their_reward_wants_the_exact_step(labeled: Row):
    rows = [labeled(f"r{i}", ["x", "y"], [1, 1]) for i in range(3)] + [labeled("w", ["x", "y"], [1, 0])]
    prompts = verdict_prompts(rows)
    assert sorted(p["first_error"] for p in prompts) == [-1, 1]
    texts = [
        "Verdict 1: correct\nVerdict 2: correct\n",
        "Verdict 1: correct\n",
        "Verdict 1: correct\nVerdict 2: wrong\n",
    ]
    assert verdict_reward(texts, [-1, -1, 1], [2, 2, 2]) == [1.0, 0.0, 1.0]
    assert verdict_reward([[{"role": "assistant", "content": texts[0]}]], [1], [2]) == [0.0]


def test_the_loss_is_on_the_completion_alone_and_training_lowers_it(
    tiny_llama: Path, tmp_path: Path, labeled: Row
):
    rows = [labeled(f"p{i}", ["x"], [i % 2]) for i in range(8)]
    examples, _ = critiques(rows, replace(FORMAT, instruction="?"))
    losses: list[float] = []
    out = train_generative(
        examples, base=tiny_llama, out=tmp_path / "critic", prompt=PromptTemplate("p", "{{ problem }}\n"),
        schedule=Schedule(epochs=6, batch_size=8, learning_rate=1e-2, row_tokens=240),
        on_progress=lambda p: losses.append(p.loss),
    )  # fmt: skip
    # Before training: uniform over 258 ids, ln 258 = 5.55, up to the size of random weights.
    assert losses[0] == pytest.approx(5.55, abs=0.1)
    assert losses[-1] < losses[0] - 0.5
    tokenizer = load_tokenizer(out)
    question, completion = examples[0].question + "\n", examples[0].completion
    ids = torch.tensor([(tokenizer.bos_id, *tokenizer.encode(question + completion), *tokenizer.eos_ids)])
    count = len(tokenizer.encode(completion)) + 1
    logp = load_causal_lm(out)(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[-count:]
    assert -logp.mean().item() < losses[0] - 0.5


def test_a_critique_that_does_not_fit_is_refused_by_name(tiny_llama: Path, tmp_path: Path, labeled: Row):
    examples, _ = critiques([labeled("long", ["x" * 300], [1])])
    with pytest.raises(InputError, match="long-0"):
        train_generative(examples, base=tiny_llama, out=tmp_path / "critic")
    with pytest.raises(InputError, match="no example"):
        train_generative([], base=tiny_llama, out=tmp_path / "critic")
