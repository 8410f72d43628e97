"""Calibration of P(step is right) is reported apart where the completer is not the generator."""

from dataclasses import replace

import pytest

from stepward.prm.audit.labels import calibration_by_completer, is_off_policy
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.items import Item
from stepward.prm.types import (
    Allocation,
    Estimate,
    LabeledSolution,
    LabelerInfo,
    PolicyInfo,
    Problem,
    Solution,
    Step,
    StepLabel,
)

ME, OTHER = PolicyInfo("me", "1", "scripted"), PolicyInfo("other", "1", "scripted")


def row(number, p, *, completer=ME, marks=(), ids_from="sampled"):
    problem = Problem(f"p{number}", f"Problem {number}?")
    steps = (Step("a"), Step("b"))
    return LabeledSolution(
        problem, Solution(f"p{number}-0", problem.id, steps, ids_from=ids_from), (Estimate(),) * 3,
        tuple(StepLabel(p_first_error=x) for x in p), None, ME, completer, "", 0, Allocation.FIXED_K, 0, 0,
        LabelerInfo("", "", ""), marks,
    )  # fmt: skip


def item(number, first_error):
    return Item(f"i{number}", f"Problem {number}?", ("a", "b"), first_error)


def test_a_row_is_off_policy_by_its_mark_by_its_completer_or_because_it_was_brought():
    assert not is_off_policy(row(0, (0.1, 0.1)))
    assert is_off_policy(row(0, (0.1, 0.1), completer=OTHER))
    assert is_off_policy(row(0, (0.1, 0.1), marks=("off_policy",)))
    assert is_off_policy(row(0, (0.1, 0.1), ids_from="encoded"))


def test_each_kind_has_a_figure_of_its_own_and_an_absent_kind_has_none():
    rows = [row(0, (0.0, 0.0)), row(1, (1.0, 0.0)), row(2, (0.5, 0.0), completer=OTHER)]
    items = [item(0, None), item(1, 0), item(2, None)]
    few = Bootstrap(num_resamples=20)
    found = calibration_by_completer(rows, items, bootstrap=few)
    # on-policy: 1, 1 on two right steps and 0 on a first error; off-policy: .5, .5 on two right steps
    assert found["on_policy"].brier.value == pytest.approx(0.0)
    assert found["off_policy"].brier.value == pytest.approx(0.25)
    assert found["off_policy"].ece.value == pytest.approx(0.5)
    assert (found["on_policy"].num_steps, found["off_policy"].num_steps) == (3, 2)
    assert set(calibration_by_completer(rows[:2], items[:2], bootstrap=few)) == {"on_policy"}


def test_rows_that_do_not_say_p_have_no_calibration():
    silent = replace(row(0, (0.1, 0.1)), labels=(StepLabel(), StepLabel()))
    assert calibration_by_completer([silent], [item(0, None)]) == {}
