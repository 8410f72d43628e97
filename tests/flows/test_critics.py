"""Critics on ProcessBench-format files: majorities by hand, faults, and the command's results folder."""

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from stepward.flows.config import parse
from stepward.flows.critics import CriticConfig, Judgement, first_refuted, first_under_half, run_critic
from stepward.labeling.policies.scripted import scripted_policy
from stepward.prm.errors import EngineError, ModelError
from stepward.prm.evaluation.compare import recompute
from stepward.prm.models.verdicts import VerdictFormat
from stepward.prm.prompts import PromptTemplate
from stepward.verifiers.critiques import StepVotes

ROWS = [
    {"id": f"gsm8k-{i}", "generator": "g", "problem": f"What is {i} + 1, doubled?",
     "steps": [f"{i} + 1 = {i + 1 + wrong}", "done"], "final_answer_correct": not wrong, "label": 0 if wrong else -1}
    for i, wrong in enumerate([0, 1, 0, 1])
]  # fmt: skip


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in ROWS) + "\n")
    return path


@dataclass
class Critic:
    """The scripted engine, whose script also reads the prompt and the draw's index."""

    answer: Any
    inner: Any = field(default_factory=lambda: scripted_policy(lambda *_: ""))

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def sample(self, request):
        prompt = self.inner.tokenizer.decode(request.prefix.prompt_ids)
        said = self.answer(prompt, request.index)
        return await scripted_policy(lambda *_: said() if callable(said) else said).sample(request)


def checked(prompt):
    """Whether the sum in the shown step is right."""
    a, b, c = map(int, re.search(r"(\d+) \+ (\d+) = (\d+)", prompt).groups())
    return a + b == c


def as_judge(prompt, index):
    """Index 1 of 3 always says the opposite: a majority of two outvotes it."""
    mark = re.search(r"step N \((\w+)\)", prompt)[1]
    right = checked(prompt) is not (index % 3 == 1)
    return f"step 0 ({mark}): {'correct' if right else 'incorrect'}\nstep 1 ({mark}): correct\n"


def as_generative(prompt, index):
    right = checked(prompt) is not (index % 3 == 1)
    return (
        "Step 1: sum\nVerdict 1: correct\nStep 2: end\nVerdict 2: correct\n"
        if right
        else "Step 1: sum\nVerdict 1: wrong\n"
    )


def run(critic, answer, file, out, **given):
    config = parse(
        CriticConfig,
        critic=critic,
        policy="scripted",
        out=out,
        processbench=(file,),
        **{"num_critiques": 3, "bootstrap": 100, **given},
    )
    return run_critic(config, Critic(answer))


@pytest.mark.parametrize(("critic", "answer"), [("judge", as_judge), ("generative", as_generative)])
def test_a_majority_of_three_critiques_finds_every_first_error_and_one_critique_may_not(
    critic, answer, file, tmp_path
):
    results = run(critic, answer, file, tmp_path / "out")
    assert results.runs[0].predictions == (None, 0, None, 0)
    assert results.runs[0].result.macro.f1.value == 1.0
    assert results.runs[0].result.threshold is None
    # the folder says the same again, and compare works on it
    assert recompute(tmp_path / "out").macro.f1.value == 1.0
    assert "names steps itself" in (tmp_path / "out" / "report.html").read_text()


def test_one_contrary_critique_alone_is_wrong_everywhere(file, tmp_path):
    always = lambda prompt, index: as_judge(prompt, 1)  # noqa: E731
    results = run("judge", always, file, tmp_path / "out", num_critiques=1)
    assert results.runs[0].predictions == (0, None, 0, None)
    assert results.runs[0].result.macro.f1.value == 0.0


@pytest.mark.parametrize("critic", ["judge", "generative"])
def test_a_critic_that_says_nothing_decides_nothing_and_is_never_no_error(critic, file, tmp_path):
    results = run(critic, lambda prompt, index: "I like this solution.", file, tmp_path / "out")
    result = results.runs[0].result
    assert result.num_undecided == 4
    # Silence is no miss of two right solutions and no score of 0 either.
    assert result.macro.correct_accuracy.value is None
    assert result.misses["undecided"] == 4
    page = (tmp_path / "out" / "report.html").read_text()
    assert "4 of 4 solutions are undecided" in page
    assert "nothing was decided" in page
    assert recompute(tmp_path / "out").macro.f1.value is None


@pytest.mark.parametrize("critic", ["judge", "generative"])
def test_a_critique_that_the_engine_fails_leaves_its_solution_undecided_and_the_others_alone(
    critic, file, tmp_path
):
    def failing(prompt, index):
        if "What is 2" in prompt:

            def fail():
                raise EngineError("502", retryable=True)

            return fail
        return (as_judge if critic == "judge" else as_generative)(prompt, index)

    results = run(critic, failing, file, tmp_path / "out")
    assert results.runs[0].undecided == {"gsm8k-2"}
    assert [p for i, p in enumerate(results.runs[0].predictions) if i != 2] == [None, 0, 0]
    # All three decided are right; with the undecided one as a miss one of two right solutions is.
    result = results.runs[0].result
    assert (result.macro.correct_accuracy.value, result.decided[-1].f1.value) == (0.5, 1.0)
    assert "Over the decided ones alone" in (tmp_path / "out" / "report.html").read_text()


def test_a_critic_trained_here_is_asked_in_its_own_format_and_prompt(file, tmp_path):
    folder = tmp_path / "critic"
    folder.mkdir()
    facts = {
        "verdict_format": asdict(VerdictFormat(instruction="Look.", right="yes", wrong="no")),
        "prompt": asdict(PromptTemplate("own", "[[{{ problem }}]]")),
    }
    (folder / "critic.json").write_text(json.dumps(facts))
    seen = []

    def answer(prompt, index):
        seen.append(prompt)
        return "Verdict 1: yes\nVerdict 2: yes\n" if checked(prompt) else "Verdict 1: no\n"

    results = run(str(folder), answer, file, tmp_path / "out")
    assert results.runs[0].predictions == (None, 0, None, 0)
    assert all(p.startswith("[[") and p.endswith("Look.]]") for p in seen)
    # The policy's own folder says the same where the critic is just "generative".
    engine = Critic(answer)
    engine.folder = folder
    config = parse(
        CriticConfig, critic="generative", policy="scripted", out=tmp_path / "two", processbench=(file,),
        num_critiques=1, bootstrap=100,
    )  # fmt: skip
    assert run_critic(config, engine).runs[0].predictions == (None, 0, None, 0)
    (folder / "critic.json").write_text("{}")
    with pytest.raises(ModelError, match=r"critic\.json cannot be read"):
        run(str(folder), answer, file, tmp_path / "three")


def test_ties_refute_nothing_and_silence_before_an_error_decides_nothing():
    # (correct, incorrect, silent) of each step
    def votes(*rows):
        return [StepVotes(*row) for row in rows]

    assert first_refuted(votes((3, 0, 0), (1, 2, 0))) == Judgement(1)
    assert first_refuted(votes((1, 1, 1), (2, 1, 0))) == Judgement(None)
    assert first_refuted(votes((0, 0, 3), (0, 3, 0))).undecided
    assert first_refuted(votes((0, 2, 1), (0, 0, 3))) == Judgement(0)
    assert first_under_half([0.9, 0.4, None]) == Judgement(1)
    assert first_under_half([0.5, 0.5]) == Judgement(None)
    assert "step 1" in first_under_half([0.9, None, 0.1]).undecided


@pytest.mark.parametrize("critic", ["judge", "generative"])
def test_a_solution_too_long_for_the_critic_is_undecided_and_said_so(critic, file, tmp_path):
    settings = {"policy": "scripted", "processbench": (file,), "num_critiques": 1, "bootstrap": 100}
    config = parse(CriticConfig, critic=critic, out=tmp_path, **settings)
    short = scripted_policy(lambda *_: "", context_length=2100)
    results = run_critic(config, Critic(as_judge, short))
    assert len(results.runs[0].undecided) == 4
    assert "context is 2100" in results.notes[0]
