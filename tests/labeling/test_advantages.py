"""Credit for steps, each number worked out by hand."""

import numpy as np
import pytest

from stepward.labeling import advantages, preferences
from stepward.labeling.tree import ROOT, Tree
from stepward.prm.types import Outcome


def fork() -> Tree:
    """root -> a (2 right, 0 wrong), b (1 right, 1 wrong), c (0 right, 2 wrong), d (only a truncated draw)."""
    tree = Tree("p", (0,))
    for i, (right, wrong) in enumerate([(2, 0), (1, 1), (0, 2)], start=1):
        node, _ = tree.add_child(ROOT, (i,), seed=i)
        for outcome, n in ((Outcome.RIGHT, right), (Outcome.WRONG, wrong)):
            for _ in range(n):
                tree.add_outcome(node, outcome)
    d, _ = tree.add_child(ROOT, (9,), seed=9)
    tree.add_outcome(d, Outcome.TRUNCATED)
    return tree


def test_leaf_values_are_means_below_and_a_truncated_draw_is_no_leaf():
    leaves = advantages.leaf_values(fork())
    np.testing.assert_allclose(leaves.value, [0.5, 1.0, 0.5, 0.0, np.nan])
    assert leaves.leaves.tolist() == [6, 2, 2, 2, 0]


def test_tree_rpo_centres_among_siblings():
    # mean of 1, .5, 0 = .5; standard deviation = sqrt(1/6) = .40825
    np.testing.assert_allclose(advantages.tree_rpo(fork()), [0, 0.5, 0, -0.5, np.nan])
    np.testing.assert_allclose(advantages.tree_rpo(fork(), normalise=True)[1], 1.224745, atol=1e-6)


def test_tree_rl_adds_global_and_local_advantage():
    # a: ((1 - .5) + (1 - .5)) / sqrt 2 = .70711
    np.testing.assert_allclose(advantages.tree_rl(fork())[:4], [0, 0.70711, 0, -0.70711], atol=1e-5)


def test_tree_grpo_normalises_within_the_tree_and_over_all_trees():
    # tree 1: mean .5, std .5 -> +1, -1; tree 2: no spread -> 0; all: mean .75, std .433 -> (1-.75)/.433 = .57735
    first, second = advantages.tree_grpo([[1, 0], [1, 1]])
    np.testing.assert_allclose(first, [1.57735, -2.73205], atol=1e-5)
    np.testing.assert_allclose(second, [0.57735, 0.57735], atol=1e-5)


def test_group_baseline_is_the_median_or_a_quantile():
    np.testing.assert_allclose(advantages.group_baseline([0, 0, 1]), [0, 0, 1])
    np.testing.assert_allclose(
        advantages.group_baseline([0, 1, 1, 1], quantile=0.25), [-0.75, 0.25, 0.25, 0.25]
    )


def test_gigpo_compares_steps_taken_from_the_same_state():
    # two episodes from state s; rewards 1 and 0 at the end; discount 1
    got = advantages.gigpo([[("s", 0.0), ("t", 1.0)], [("s", 0.0), ("u", 0.0)]], discount=1.0)
    # episode part: totals 1, 0 -> +1, -1; step part at s: returns 1, 0 -> +1, -1; t and u are alone -> 0
    np.testing.assert_allclose(got, [[2.0, 1.0], [-2.0, -1.0]])


def test_rtmc_subtracts_the_states_value():
    got = advantages.rtmc([([("s", "x")], 1.0), ([("s", "x")], 0.0), ([("s", "y")], 0.0)])
    # V(s) = 1/3; Q(s, x) = 1/2; Q(s, y) = 0
    np.testing.assert_allclose(np.concatenate(got), [1 / 6, 1 / 6, -1 / 3])


def test_information_gain_credits_only_new_highs():
    np.testing.assert_allclose(advantages.information_gain([-3, -2, -2.5, -1]), [1, 0, 1])


def test_progress_advantage_sums_log_ratios_over_a_steps_tokens():
    np.testing.assert_allclose(
        advantages.progress_advantage([[-1, -1], [-2]], [[-2, -1.5], [-1]], beta=0.1), [0.15, -0.1]
    )


def test_prover_advantage_uses_best_of_k_of_the_same_q():
    # K = 2: Q^mu of .5 = .75, of .2 = .36; score = .2 + .5 (.36 - .75) = .005
    np.testing.assert_allclose(advantages.prover_advantage([0.5, 0.2], best_of=2), [0.005])


def test_sibling_pairs_keep_the_margin_and_the_evidence():
    pairs = list(preferences.sibling_pairs(fork(), margin=0.5))
    assert [(p.chosen, p.rejected, p.gap, p.chosen_leaves) for p in pairs] == [(1, 3, 1.0, 2)]
    weighted = list(preferences.sibling_pairs(fork(), weigh_by_gap=True))
    assert [p.weight for p in weighted] == [0.5, 1.0, 0.5]
    assert list(preferences.sibling_pairs(fork(), min_leaves=3)) == []


def test_step_dpo_pairs_only_the_certain():
    assert [(p.chosen, p.rejected) for p in preferences.step_dpo(fork())] == [(1, 3)]


def test_rstar_pairs_need_a_gap_and_texts_that_differ():
    tree = fork()
    for node, value in ((1, 1.0), (2, 0.0), (3, -1.0)):
        tree.visits[node], tree.value_sum[node] = 1, value
    texts = ["", "a" * 30, "b" * 30, "c" * 30, ""]
    got = [(p.chosen, p.rejected) for p in preferences.rstar_ppm(tree, texts)]
    # right ends: 1, 2 (V > 0); wrong ends: 3, 2 (V < 1)
    assert got == [(1, 3), (1, 2), (2, 3)]
    assert list(preferences.rstar_ppm(tree, [""] + ["a" * 30] * 4)) == []


@pytest.mark.parametrize("rewards", [[1.0], [1.0, 1.0]])
def test_a_group_without_spread_has_no_advantage(rewards):
    assert advantages.tree_grpo([rewards])[0].tolist() == [0.0] * len(rewards)
