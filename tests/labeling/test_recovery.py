"""A mistake that a thinking trace takes back is recorded as recovered and is no first error."""

import importlib.util
from pathlib import Path

import pytest

from stepward.labeling.allocation.fixed_k import FixedK
from stepward.labeling.evidence import SolutionLabels
from stepward.labeling.recovery import is_self_correction, with_recoveries
from stepward.labeling.relabel import Relabeling, relabel_table
from stepward.prm.dataset.schema import rows_of, solution_of, solutions_table
from stepward.prm.steps import StepFormat
from stepward.prm.types import Counts, Estimate, Phase, Step, StepLabel


def _harness():
    spec = importlib.util.spec_from_file_location("annotating", Path(__file__).with_name("annotating.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


h = _harness()


@pytest.mark.parametrize(
    ("text", "corrects"),
    [
        ("Wait, 2 + 2 = 4.", True),
        ("Hmm, wait. That gives 5.", True),
        ("But wait, I forgot the tank.", True),
        ("Actually, the second tank is empty.", True),
        ("No, that's wrong: 7 - 2 = 5.", True),
        ("That can't be right, the total was 9.", False),
        ("That cannot be right? It was 9.", True),
        ("I made a mistake in the first line.", True),
        ("Let me re-check: 12 / 4 = 3.", True),
        ("Let me double check the sum.", True),
        ("So we wait 3 hours.", False),
        ("The waiter has 3 plates.", False),
        ("Now add 4 to it.", False),
        ("Alternatively, add 4 first.", False),
    ],
)
def test_a_self_correction_is_known_by_how_it_begins(text, corrects):
    assert is_self_correction(Step(text, phase=Phase.THINK)) is corrects
    assert not is_self_correction(Step(text, phase=Phase.ANSWER)), "only thinking takes back"


def steps(*texts: str, answer: int = 1) -> list[Step]:
    """The last ``answer`` steps are the answer, the others thinking."""
    phases = [Phase.THINK] * (len(texts) - answer) + [Phase.ANSWER] * answer
    return [Step(t, phase=p) for t, p in zip(texts, phases, strict=True)]


def found(labels: list[int | None], counts: list[tuple[int, int]] | None = None, first: int | None = None):
    """Labels, and (right, wrong) at prefixes 1..T."""
    pairs = counts or [(0, 0)] * len(labels)
    estimates = (Estimate(), *(Estimate(Counts(right=r, wrong=w)) for r, w in pairs))
    return SolutionLabels(estimates, tuple(StepLabel(x, 0.5, decided_by="returns") for x in labels), first)


def test_a_mistake_that_is_taken_back_is_no_first_error():
    trace = steps(
        "<think> 2 + 2 = 5", "so 5 + 2 = 7", "Wait, 2 + 2 = 4", "4 + 2 = 6</think>", "The answer is 6."
    )
    out = with_recoveries(trace, found([0, 0, 1, 1, 1], first=0))
    assert out.first_error is None
    assert [(x.label, x.decided_by) for x in out.labels] == [
        (None, "recovered"), (None, "recovered"), (1, "recovery"), (1, "returns"), (1, "returns"),
    ]  # fmt: skip
    assert [x.p_first_error for x in out.labels] == [0.0, 0.0, 0.5, 0.5, 0.5]


def test_an_estimator_whose_errors_are_for_good_is_read_by_its_rollouts():
    trace = steps("<think> 2 + 2 = 5", "Wait, 2 + 2 = 4", "4 + 2 = 6</think>", "The answer is 6.")
    # after the correction three of four rollouts are right
    out = with_recoveries(trace, found([0, 0, 1, 1], [(0, 4), (3, 1), (4, 0), (1, 0)], first=0))
    assert out.first_error is None
    assert [x.decided_by for x in out.labels][:2] == ["recovered", "recovery"]


def test_words_of_correction_that_change_nothing_are_no_recovery():
    trace = steps("<think> 2 + 2 = 5", "Wait, is it? Yes.", "5 + 2 = 7</think>", "The answer is 7.")
    labels = found([0, 0, 0, 0], [(0, 4), (1, 3), (0, 4), (0, 1)], first=0)
    assert with_recoveries(trace, labels) == labels


def test_a_second_mistake_after_a_recovery_is_the_first_error():
    trace = steps("<think> 2 + 2 = 5", "Wait, 2 + 2 = 4", "4 + 2 = 8</think>", "The answer is 8.")
    out = with_recoveries(trace, found([0, 1, 0, 0], first=0))
    assert out.first_error == 2
    assert [x.label for x in out.labels] == [None, 1, 0, 0]


def test_a_mistake_in_the_answer_stays_the_first_error():
    trace = steps("<think> 2 + 2 = 4</think>", "2 + 2 = 5", "Wait, 2 + 2 = 4.", answer=2)
    labels = found([1, 0, 1], first=1)
    assert with_recoveries(trace, labels) == labels


def test_a_labelled_thinking_trace_holds_its_recovery():
    wrong, back = "<think>\n2 + 2 = 5\n\n", "Wait, 2 + 2 = 4\n\n"
    whole = f"{wrong}{back}4 + 2 = 6\n</think>\n\nThe answer is 6."

    def completions(so_far: str) -> str:
        return "The answer is 6." if "Wait" in so_far else "5 + 2 = 7\n</think>\n\nThe answer is 7."

    policy = h.script([whole], completions)
    plan = h.labelling(policy, allocation=FixedK(4), num_solutions=1, step_format=StepFormat("think"))
    row = h.run(policy, plan).solutions[0]
    assert [s.phase for s in row.solution.steps] == [Phase.THINK] * 3 + [Phase.ANSWER]
    assert [(x.label, x.decided_by) for x in row.labels] == [
        (None, "recovered"), (1, "recovery"), (1, "returns"), (1, "returns"),
    ]  # fmt: skip
    assert row.first_error is None


def test_relabelling_records_the_same_recovery(tmp_path: Path):
    wrong, back = "<think>\n2 + 2 = 5\n\n", "Wait, 2 + 2 = 4\n\n"
    whole = f"{wrong}{back}4 + 2 = 6\n</think>\n\nThe answer is 6."

    def completions(so_far: str) -> str:
        return "The answer is 6." if "Wait" in so_far else "5 + 2 = 7\n</think>\n\nThe answer is 7."

    policy = h.script([whole, "2 + 2 = 5\n\nThe answer is 5."], completions)
    plan = h.labelling(policy, allocation=FixedK(4), step_format=StepFormat("think"))
    rows = h.run(policy, plan).solutions
    table, report = relabel_table(solutions_table(rows), Relabeling("hard"))
    again = [solution_of(row) for row in rows_of(table)]
    for before, after in zip(rows, again, strict=True):
        assert [(x.label, x.decided_by) for x in after.labels] == [
            (x.label, x.decided_by) for x in before.labels
        ]
        assert after.first_error == before.first_error
    assert [x.decided_by for x in again[0].labels][:2] == ["recovered", "recovery"]
    assert report.labels["unknown"] == 1
