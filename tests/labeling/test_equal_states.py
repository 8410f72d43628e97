"""Solutions that begin with the same tokens are in one state: its evidence is merged and drawn once."""

from dataclasses import replace

import numpy as np
import pytest

from stepward.labeling.allocation.information_gain import InformationGain
from stepward.labeling.changepoint.grid import make_grid
from stepward.labeling.changepoint.problem import posteriors
from stepward.labeling.evidence import Draw, LabelingConstants, SolutionEvidence, prefix_nodes
from stepward.prm.types import Outcome

R, W = Outcome.RIGHT, Outcome.WRONG
GRID = make_grid()


def solution(draws, outcome, nodes=(), step_tokens=None):
    steps = len(draws) - 1
    return SolutionEvidence(
        steps, step_tokens or (10,) * steps, outcome, tuple(map(tuple, draws)), nodes=tuple(nodes)
    )


def test_two_prefixes_are_one_state_where_all_their_tokens_and_step_boundaries_are_the_same():
    nodes = prefix_nodes([[(1,), (2, 3), (4,)], [(1,), (2, 3), (5,)], [(1,), (2,), (3, 4)], [(1,)]])
    assert nodes == [(0, 1, 2, 3), (0, 1, 2, 4), (0, 1, 5, 6), (0, 7)]


def test_steps_whose_tokens_are_not_known_are_no_equal_states():
    assert prefix_nodes([[(), ()], [(1,), ()], [(1,), (2,)]]) == [(), (), (0, 1, 2)]


def test_the_end_of_a_solution_is_no_prefix_that_another_goes_on_from():
    short, long = prefix_nodes([[(1,), (2,)], [(1,), (2,), (3,)]])
    assert short[1] == long[1]
    assert short[2] != long[2]


def test_draws_of_one_state_are_evidence_on_all_who_pass_it_and_a_sibling_is_a_draw_where_it_leaves():
    first = solution([[], [R], [W, W], [R], []], W, (0, 1, 2, 3, 4))
    second = solution([[], [W], [R], [W], []], R, (0, 1, 2, 5, 6))
    # By hand: prefix 1 has both draws, prefix 2 all three and the sibling's right outcome, prefix 3 its own.
    merged = solution([[], [R, W], [R, R, W, W], [R], []], W)
    found = posteriors([first, second], GRID, pool=False)[0]
    alone = posteriors([merged], GRID, pool=False)[0]
    np.testing.assert_allclose(found.p_right, alone.p_right, atol=1e-12)
    np.testing.assert_allclose(found.value, alone.value, atol=1e-12)
    np.testing.assert_allclose(found.theta, alone.theta, atol=1e-12)


def test_pooling_tells_a_solution_nothing_twice():
    """Two that share a step pool by their state alone: what one draws is in the other's counts, not in its prior."""
    pair = [
        solution([[], [R], [W], []], W, (0, 1, 2, 3)),
        solution([[], [R], [W], []], R, (0, 1, 4, 5)),
    ]
    for pooled, single in zip(*(posteriors(pair, GRID, pool=p) for p in (True, False)), strict=True):
        np.testing.assert_allclose(pooled.p_right, single.p_right, atol=1e-12)
    rest = [solution([[], [W], [W], []], W, (0, n, n + 1, n + 2)) for n in (6, 9, 12)]
    told = posteriors([*pair, *rest], GRID)[2]
    # Of the pair the first speaks, with the second's draw at prefix 1 and its outcome there.
    speaker = solution([[], [R, R, R], [W], []], W)
    expected = posteriors([speaker, *(replace(s, nodes=()) for s in rest)], GRID)[1]
    np.testing.assert_allclose(told.p_right, expected.p_right, atol=1e-12)


def test_where_most_solutions_share_their_beginning_they_are_not_pooled_beyond_it():
    pair = [solution([[], [R], [W], []], W, (0, 1, 2 + i, 4 + i)) for i in (0, 1)]
    apart = [solution([[], [W], [W], []], W, (0, n, n + 1, n + 2)) for n in (6, 9)]
    for a, b in zip(*(posteriors([*pair, *apart], GRID, pool=p) for p in (True, False)), strict=True):
        np.testing.assert_array_equal(a.p_right, b.p_right)  # two of four


def test_a_copy_of_a_whole_solution_adds_its_draws_and_not_its_outcome():
    one = solution([[], [R], []], W, (0, 1, 2))
    other = solution([[], [W], []], W, (0, 1, 2))
    found = posteriors([one, other], GRID, pool=False)
    alone = posteriors([solution([[], [R, W], []], W)], GRID, pool=False)[0]
    for each in found:
        np.testing.assert_allclose(each.p_right, alone.p_right, atol=1e-12)


@pytest.mark.parametrize("pool", [True, False])
def test_where_only_the_question_is_shared_nothing_changes(pool):
    draws = [([[], [R, W], [W], []], W), ([[R], [], [W, W], [R], []], R), ([[], []], W)]
    nodes = [(0, 1, 2, 3), (0, 4, 5, 6, 7), (0, 8)]
    with_nodes = [solution(d, o, n) for (d, o), n in zip(draws, nodes, strict=True)]
    without = [solution(d, o) for d, o in draws]
    for a, b in zip(*(posteriors(s, GRID, pool=pool) for s in (with_nodes, without)), strict=True):
        np.testing.assert_array_equal(a.p_right, b.p_right)
        np.testing.assert_array_equal(a.gain, b.gain)
    rule = InformationGain(LabelingConstants(price=1e-6), pool, compiled=False)
    assert rule.next_draws(with_nodes) == rule.next_draws(without)


def test_off_policy_a_siblings_outcome_stays_an_outcome_and_draws_merge():
    one, other = (
        replace(solution([[], [R], [], []], W, (0, 1, 2 + i, 4 + i)), on_policy=False) for i in (0, 1)
    )
    off = make_grid(on_policy=False)
    found = posteriors([one, other], off, pool=False)[0]
    merged = [replace(s, nodes=(), draws=((), (R, R), (), ())) for s in (one, other)]
    np.testing.assert_allclose(found.p_right, posteriors(merged, off, pool=False)[0].p_right, atol=1e-12)


def test_one_rollout_serves_all_solutions_through_its_state():
    shared = solution([[], [], [], []], W, (0, 1, 2, 3))
    copy = replace(shared)
    apart = solution([[], [], [], []], W, (0, 4, 5, 6))
    rule = InformationGain(LabelingConstants(price=1e-9), compiled=False, pool=False)
    draws = rule.next_draws([shared, copy, apart])
    assert [d.solution for d in draws] == [0, 2]  # the copy is served by the first one's draw


def test_a_state_of_two_solutions_is_worth_twice_the_price():
    one = solution([[], [], []], W, (0, 1, 2))
    both = [one, solution([[], [], []], W, (0, 1, 3))]
    grid_gain = posteriors(both, GRID, pool=False)[0].gain[1]
    price = 1.5 * grid_gain / 10  # ten tokens are left at prefix 1
    rule = InformationGain(LabelingConstants(price=price), pool=False, compiled=False)
    assert rule.next_draws(both) == [Draw(0, 1)]
    # Alone, with the sibling's outcome as the draw that it is, the same rollout tells half as much.
    assert rule.next_draws([solution([[], [W], []], W)]) == []


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("on_policy", [True, False])
def test_compiled_gains_read_shared_states_alike(pool, on_policy):
    pytest.importorskip("numba", reason="the compiled form needs numba: pip install 'stepward[fast]'")
    from stepward.labeling.changepoint.fast import information_gains

    solutions = [
        solution([[], [R], [W, W], [R], []], W, (0, 1, 2, 3, 4)),
        solution([[], [W], [R], []], R, (0, 1, 5, 6)),
        solution([[], [R, R, W], []], W, (0, 7, 8)),
        solution([[], [], [], [W], []], W, (0, 1, 2, 3, 4)),
    ]
    solutions = [replace(s, on_policy=on_policy) for s in solutions]
    grid = make_grid(on_policy=on_policy)
    fast = information_gains(solutions, grid, pool=pool, unfinished_as_wrong=False, precision={}, recall={})
    for mine, plain in zip(fast, posteriors(solutions, grid, pool=pool), strict=True):
        np.testing.assert_allclose(mine, plain.gain, atol=1e-12)
