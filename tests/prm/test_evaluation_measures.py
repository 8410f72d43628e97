"""Calibration, early detection and Q-alignment, by hand and against definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepward.prm.evaluation.aggregation import minimum
from stepward.prm.evaluation.calibration import auroc, calibration, labelled_steps, solution_auroc
from stepward.prm.evaluation.early_detection import early_detection
from stepward.prm.evaluation.errors import MissingItemsError, ScoreRangeError, StepCountError
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.items import Item, JudgedSolution
from stepward.prm.evaluation.q_alignment import (
    Action,
    State,
    probability_greater,
    q_alignment,
    sibling_states,
    spearman,
)
from stepward.prm.types import (
    Allocation,
    Counts,
    Estimate,
    LabeledSolution,
    LabelerInfo,
    PolicyInfo,
    Problem,
    Solution,
    Step,
    StepLabel,
)

NONE = Bootstrap(num_resamples=0)


def item(name: str, first_error: int | None, num_steps: int = 4) -> Item:
    return Item(name, name, ("x",) * num_steps, first_error)


# --- calibration


def test_steps_after_the_first_error_have_no_label() -> None:
    steps = labelled_steps([item("a", 1), item("b", None, 2)], [(0.9, 0.2, 0.8, 0.7), (0.6, 0.5)])
    assert steps.scores.tolist() == [0.9, 0.2, 0.6, 0.5]
    assert steps.right.tolist() == [1, 0, 1, 1]
    cut = labelled_steps([item("a", 1)], [(0.9, 0.2)])  # logs that stop at the first error
    assert cut.right.tolist() == [1, 0]
    with pytest.raises(StepCountError, match="item a: 3 scores"):
        labelled_steps([item("a", 1)], [(0.9, 0.2, 0.3)])


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.booleans()), min_size=1, max_size=12))
def test_auroc_is_the_share_of_ordered_pairs_with_ties_half(rows: list[tuple[float, bool]]) -> None:
    right = [s for s, r in rows if r]
    wrong = [s for s, r in rows if not r]
    got = auroc(np.array([s for s, _ in rows]), np.array([float(r) for _, r in rows]))
    if not right or not wrong:
        assert got is None
        return
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in right for b in wrong]
    assert got == pytest.approx(sum(pairs) / len(pairs))


def test_auroc_weights_are_repeats() -> None:
    scores, right = np.array([0.1, 0.4, 0.4, 0.8]), np.array([0.0, 1.0, 0.0, 1.0])
    weights = np.array([2.0, 1.0, 3.0, 2.0])
    repeated = auroc(np.repeat(scores, [2, 1, 3, 2]), np.repeat(right, [2, 1, 3, 2]))
    assert auroc(scores, right, weights) == pytest.approx(repeated)


def test_calibration_by_hand() -> None:
    # steps: (.9, right) (.8, right) (.2, wrong) (.4, right)
    got = calibration(
        [item("a", 2), item("b", None, 1)], [(0.9, 0.8, 0.2, 0.1), (0.4,)], num_bins=2, bootstrap=NONE
    )
    assert got.auroc.value == 1.0
    # (.1^2 + .2^2 + .2^2 + .6^2) / 4 = .45 / 4
    assert got.brier.value == pytest.approx(0.1125)
    assert got.brier_of_share == pytest.approx(0.75 * 0.25)
    # Median edge .6: bin 0 holds .2 and .4 (mean .3, half right), bin 1 .8 and .9 (mean .85, all right):
    # ECE = .5 * .2 + .5 * .15
    assert [b.mean_score for b in got.bins] == pytest.approx([0.3, 0.85])
    assert [b.share_right.value for b in got.bins] == [0.5, 1.0]
    assert got.ece.value == pytest.approx(0.175)
    assert (got.num_steps, got.num_wrong) == (4, 1)


def test_scores_drawn_from_their_own_probabilities_are_calibrated() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(4000)
    items = [item(f"i{k}", None if rng.random() < q else 0, 1) for k, q in enumerate(p)]
    got = calibration(items, [(float(q),) for q in p], bootstrap=Bootstrap(100))
    assert got.ece.value is not None
    assert got.ece.value < 0.03
    inside = sum(b.share_right.low <= b.mean_score <= b.share_right.high for b in got.bins)  # type: ignore[operator]
    assert inside >= 8
    assert got.auroc.value == pytest.approx(5 / 6, abs=0.02)  # P(max > min) weighted: 5/6 for p uniform
    assert got.auroc.low is not None
    assert got.auroc.high is not None
    assert got.auroc.low < got.auroc.value < got.auroc.high


def test_one_kind_of_step_has_no_auroc() -> None:
    got = calibration([item("a", None, 2)], [(0.5, 0.6)], bootstrap=Bootstrap(10))
    assert got.auroc.value is None
    assert got.auroc.note == "needs right and wrong steps"
    assert calibration([], [], bootstrap=Bootstrap(10)).brier.value is None


def test_solutions_judged_as_wholes_are_ordered_by_their_aggregate() -> None:
    judged = [
        JudgedSolution(str(k), str(k), ("x", "y"), right) for k, right in enumerate([True, False, True])
    ]
    got = solution_auroc(judged, [(0.9, 0.5), (0.4, 0.9), (0.45, 0.3)], minimum, NONE)
    assert got.value == 0.5  # minima .5 .4 .3: one of two pairs ordered
    with pytest.raises(StepCountError, match="1: 1 scores"):
        solution_auroc(judged, [(0.9, 0.5), (0.4,), (0.45, 0.3)], minimum, NONE)


# --- early detection


ITEMS = [item("a", 1), item("b", 2), item("c", 2), item("d", 0), item("e", None), item("f", None)]
FLAGS = [1, 3, 0, None, None, 1]
TOKENS = [[10, 10, 10, 10], [10, 20, 30, 40], [10, 10, 10, 10], [10] * 4, [10] * 4, [25] * 4]


def test_early_detection_by_hand() -> None:
    got = early_detection(ITEMS, FLAGS, TOKENS, bootstrap=NONE)
    # erroneous a gap 0, b gap 1, c gap -2, d never
    assert got.intervention_rate.value == 0.5
    assert got.recall.value == 0.75
    assert got.before_the_error.value == 0.25
    assert got.false_alarm_rate.value == 0.5
    assert got.intervention_gap.value == pytest.approx(1 / 3)
    assert got.intervention_gap.n == 3
    # saved: a .5, b 0, c .75, d 0
    assert got.tokens_saved.value == pytest.approx(1.25 / 4)
    assert got.tokens_lost.value == 0.25  # e 0, f .5
    assert early_detection(ITEMS, FLAGS, TOKENS, slack=1, bootstrap=NONE).intervention_rate.value == 0.75


def test_early_detection_without_a_side_is_undefined_there() -> None:
    got = early_detection(ITEMS[4:], FLAGS[4:], TOKENS[4:], bootstrap=NONE)
    assert got.intervention_rate.value is None
    assert got.false_alarm_rate.value == 0.5
    never = early_detection(ITEMS[:1], [None], TOKENS[:1], bootstrap=NONE)
    assert never.intervention_gap.value is None  # nothing flagged: no gap, not gap 0
    assert never.tokens_saved.value == 0.0


@pytest.mark.parametrize("flag", [4, -1])
def test_flags_must_lie_among_the_steps(flag: int) -> None:
    with pytest.raises(StepCountError, match=f"flag {flag}"):
        early_detection(ITEMS[:1], [flag], TOKENS[:1])
    with pytest.raises(StepCountError, match="3 token counts"):
        early_detection(ITEMS[:1], [None], [[1, 2, 3]])


# --- Q-alignment


def test_pairwise_agreement_by_hand() -> None:
    state = State(
        "p",
        0,
        (Action(3.0, 8, 8, 1.0), Action(2.0, 4, 8, 0.5), Action(2.0, 0, 8, 0.0), Action(9.0, 4, 8, 0.5)),
    )
    got = q_alignment([state], bootstrap=NONE)
    # pairs by value: 1>.5 (3>2 yes), 1>0 (yes), 1>.5' (3<9 no), .5>0 (tie, half), .5'>0 (yes); .5=.5' left out
    assert got.agreement.value == pytest.approx(3.5 / 5)
    assert (got.num_states, got.num_pairs, got.num_tied_pairs) == (1, 5, 1)


def test_states_count_alike_whatever_their_number_of_actions() -> None:
    big = State("p", 0, tuple(Action(float(k), k, 10, k / 10) for k in range(5)))
    small = State("q", 0, (Action(0.0, 9, 10, 0.9), Action(1.0, 1, 10, 0.1)))
    got = q_alignment([big, small], bootstrap=NONE)
    assert got.agreement.value == 0.5
    assert got.rank_correlation.value == pytest.approx(0.0)


def test_a_constant_signal_agrees_half_and_has_no_rank_correlation() -> None:
    state = State("p", 0, (Action(1.0, 8, 8, 1.0), Action(1.0, 4, 8, 0.5)))
    got = q_alignment([state], bootstrap=NONE)
    assert got.agreement.value == 0.5
    assert got.rank_correlation.value is None


def test_spearman_by_hand() -> None:
    # ranks of a: 1 2 3 4; of b (10, 20, 20, 5): 2 3.5 3.5 1.  Sum of products of deviations:
    # (-1.5)(-.5) + (-.5)(1) + (.5)(1) + (1.5)(-1.5) = -1.5; norms 5 and 4.5
    assert spearman([1, 2, 3, 4], [10, 20, 20, 5]) == pytest.approx(-1.5 / math.sqrt(5 * 4.5))
    assert spearman([1, 1], [1, 2]) is None


def test_the_ceiling_is_the_posterior_probability_of_the_order() -> None:
    # No draws: two uniform values, 1/2. One right draw against none: Beta(2,1) against Beta(1,1): 2/3.
    assert probability_greater(Action(0, 0, 0, 0.5), Action(0, 0, 0, 0.5)) == pytest.approx(0.5)
    assert probability_greater(Action(0, 1, 1, 1.0), Action(0, 0, 0, 0.5)) == pytest.approx(2 / 3)
    rng = np.random.default_rng(0)
    x, y = rng.beta(6, 4, 400_000), rng.beta(3, 7, 400_000)
    assert probability_greater(Action(0, 5, 8, 0), Action(0, 2, 8, 0)) == pytest.approx(
        (x > y).mean(), abs=0.003
    )


def test_a_perfect_signal_reaches_the_ceiling() -> None:
    # Given the counts, a signal that knows the true values agrees with the measured order with just this probability.
    rng = np.random.default_rng(1)
    states = []
    for k in range(1500):
        truth = rng.random(4)
        right = rng.binomial(8, truth)
        states.append(
            State(
                f"p{k}",
                0,
                tuple(Action(float(t), int(r), 8, r / 8) for t, r in zip(truth, right, strict=True)),
            )
        )
    got = q_alignment(states, bootstrap=Bootstrap(200))
    assert got.agreement.value == pytest.approx(got.ceiling.value, abs=0.01)
    assert got.ceiling.value is not None
    assert got.ceiling.value < 0.95


def labelled(
    name: str, steps: str, counts: list[tuple[int, int]], value: float | None = None
) -> LabeledSolution:
    solution = Solution(name, "p", tuple(Step(s, (ord(s),)) for s in steps))
    prefixes = tuple(Estimate(Counts(right=r, wrong=n - r), value) for r, n in [(0, 0), *counts])
    info = PolicyInfo("m", "r", "scripted")
    return LabeledSolution(
        Problem("p", "q"), solution, prefixes, (StepLabel(),) * len(steps), None, info, info, "h", 0,
        Allocation.FIXED_K, 1, 1, LabelerInfo("monte_carlo", "1", "c"),
    )  # fmt: skip


def test_siblings_share_the_ids_before_them_and_equal_steps_are_one_action() -> None:
    rows = [
        labelled("s0", "ab", [(4, 8), (8, 8)]),
        labelled("s1", "ac", [(6, 8), (1, 8)]),
        labelled("s2", "dc", [(1, 8), (0, 0)]),
    ]
    signals = {"s0": (0.4, 0.9), "s1": (0.6, 0.2), "s2": (0.3, 0.5)}
    root, after_a = sibling_states(rows, signals)
    assert (root.num_steps, after_a.num_steps) == (0, 1)
    # "a" was sampled twice: counts 10 of 16, signal .5
    assert root.actions == (Action(0.5, 10, 16, 0.625), Action(0.3, 1, 8, 0.125))
    assert [a.value for a in after_a.actions] == [1.0, 0.125]  # after d there is no sibling
    assert q_alignment([root, after_a], bootstrap=NONE).agreement.value == 1.0


def test_an_unmeasured_action_takes_no_part() -> None:
    rows = [labelled("s0", "a", [(0, 0)]), labelled("s1", "b", [(1, 8)])]
    assert sibling_states(rows, {"s0": (0.1,), "s1": (0.2,)}) == []


def test_signals_must_fit_the_rows() -> None:
    rows = [labelled("s0", "ab", [(1, 8), (1, 8)])]
    with pytest.raises(MissingItemsError, match="s0"):
        sibling_states(rows, {})
    with pytest.raises(StepCountError, match="s0: 1 signals"):
        sibling_states(rows, {"s0": (0.5,)})
    with pytest.raises(ScoreRangeError, match="s0, step 1"):
        sibling_states(rows, {"s0": (0.5, math.inf)})
