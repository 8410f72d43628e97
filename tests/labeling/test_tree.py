"""The tree shares equal states, counts draws and not replays, and survives being stored."""

import numpy as np
import pytest

from stepward.labeling import selection
from stepward.labeling.tree import NONE, ROOT, Tree
from stepward.prm.errors import InputError
from stepward.prm.types import Outcome


def golden() -> Tree:
    """root - a(1,2) - b(3) ; root - c(4): values 1, 0, 1 backed up from b, b, c."""
    tree = Tree("p", (9, 9))
    a, _ = tree.add_child(ROOT, (1, 2), seed=1, prior=0.5)
    b, _ = tree.add_child(a, (3,), seed=2, prior=0.25, terminal=True)
    c, _ = tree.add_child(ROOT, (4,), seed=3, prior=0.25)
    for node, value in ((b, 1.0), (b, 0.0), (c, 1.0)):
        selection.backup_mean(tree, node, value)
    return tree


def test_a_golden_tree_has_the_visits_and_means_computed_by_hand():
    tree = golden()
    # a: 2 visits, sum 1 -> 0.5; c: 1 visit -> 1; root: 3 visits, sum 2
    assert tree.visits[:4].tolist() == [3, 2, 2, 1]
    assert [round(tree.mean(n), 3) for n in range(4)] == [0.667, 0.5, 0.5, 1.0]
    assert tree.path(2) == [0, 1, 2]
    assert tree.prefix(2).token_ids == (9, 9, 1, 2, 3)
    assert tree.prefix(2).num_steps == 2
    assert [tree.length(n) for n in range(4)] == [0, 2, 3, 1]
    assert list(tree.children(ROOT)) == [1, 3]


def test_identical_steps_share_a_node_each_seed_counts_once_and_a_replay_never():
    tree = Tree("p", (0,))
    a, new = tree.add_child(ROOT, (1,), seed=7)
    again, new_again = tree.add_child(ROOT, (1,), seed=8)
    replay, _ = tree.add_child(ROOT, (1,), seed=8)
    assert (a, new, again, new_again, replay) == (1, True, 1, False, 1)
    assert tree.draws[a] == 2
    assert tree.num_children[ROOT] == 1


def test_equal_ids_by_another_path_are_another_node_of_the_same_state_and_pool_their_evidence():
    tree = Tree("p", (0,))
    ab, _ = tree.add_child(ROOT, (1, 2), seed=1)
    a, _ = tree.add_child(ROOT, (1,), seed=2)
    b, _ = tree.add_child(a, (2,), seed=3)
    assert ab != b
    assert tree.state[ab] == tree.state[b] != tree.state[a]
    tree.add_outcome(ab, Outcome.RIGHT)
    tree.add_outcome(b, Outcome.WRONG)
    tree.add_outcome(b, Outcome.TIMEOUT)
    # a fault is no trial
    assert tree.trials(ab) == (1, 2)
    assert tree.trials(b, pooled=False) == (0, 1)


def test_states_may_be_equal_by_a_signature():
    tree = Tree("p", (0,), signature=lambda ids: str(sum(ids)))
    a, _ = tree.add_child(ROOT, (1, 4), seed=1)
    b, _ = tree.add_child(ROOT, (2, 3), seed=2)
    assert a != b
    assert tree.state[a] == tree.state[b]


def test_a_chain_of_5000_steps_is_made_stored_and_loaded_without_recursion(tmp_path):
    tree = Tree("p", (0,))
    node = ROOT
    for i in range(5000):
        node, _ = tree.add_child(node, (i, i + 1), seed=i)
    selection.backup_mean(tree, node, 1.0)
    tree.save(tmp_path / "tree.npz")
    loaded = Tree.load(tmp_path / "tree.npz")
    assert len(loaded) == 5001
    assert loaded.depth[node] == 5000
    assert loaded.prefix(node) == tree.prefix(node)
    assert loaded.visits[: len(loaded)].tolist() == tree.visits[: len(tree)].tolist()
    # a loaded tree goes on: the same child is found, a replay stays a replay
    parent = int(loaded.parent[node])
    assert loaded.add_child(parent, loaded.step_ids(node), seed=4999) == (node, False)
    assert loaded.draws[node] == 1
    new, is_new = loaded.add_child(node, (1,), seed=1)
    assert (new, is_new) == (5001, True)
    assert (loaded.length(node), loaded.length(new)) == (10000, 10001)


def test_a_step_without_ids_is_refused_by_name():
    with pytest.raises(InputError, match="node 0 of problem p"):
        Tree("p", (0,)).add_child(ROOT, (), seed=1)


def test_uct_adds_the_bonus_of_the_formula():
    tree = golden()
    # c = 2, ln 3 = 1.0986; a: .5 + 2 sqrt(1.0986/2) = 1.9823; c: 1 + 2 sqrt(1.0986) = 3.0963
    np.testing.assert_allclose(selection.uct()(tree, ROOT, [1, 3]), [1.98230, 3.09629], atol=1e-4)


def test_puct_weighs_the_prior():
    tree = golden()
    # c = 1.5, sqrt 3 = 1.7321; a: .5 + 1.5*.5*1.7321/3 = .9330; c: 1 + 1.5*.25*1.7321/2 = 1.3248
    np.testing.assert_allclose(selection.puct()(tree, ROOT, [1, 3]), [0.93301, 1.32476], atol=1e-4)


def test_value_weighted_tries_an_unvisited_child_as_if_it_were_right():
    tree = golden()
    new, _ = tree.add_child(ROOT, (8,), seed=9)
    # c = .7: a: .5 + .7 sqrt(2*1.0986/2) = 1.2337
    np.testing.assert_allclose(selection.value_weighted()(tree, ROOT, [1, new]), [1.23370, 1.0], atol=1e-4)


def test_descend_stops_where_a_node_has_room_for_a_child():
    tree = golden()
    assert selection.descend(tree, selection.uct(), width=2) == 3
    assert selection.descend(tree, selection.uct(), width=3) == ROOT


def test_best_first_takes_the_open_leaf_of_highest_mean():
    tree = golden()
    assert selection.best_first(tree) == 3
    tree.terminal[3] = 1
    assert selection.best_first(tree) is None


def test_omegaprm_priority_is_the_papers():
    # alpha^(1-.5) = .7071, beta^(250/500) = .9487, product .6708; U = .125 * sqrt(9) / 3 = .125
    assert selection.omegaprm_priority(0.5, 250, 2, 9) == pytest.approx(0.79582, abs=1e-5)


def test_entropy_branches_take_the_most_uncertain_tokens_and_leave_the_last_alone():
    assert selection.entropy_branches([0.1, 2.0, 0.3, 2.0, 9.0], 2) == [1, 3]
    assert selection.entropy_branches([5.0], 3) == []


def test_wider_or_deeper_follows_a_child_that_is_always_right_and_widens_from_one_that_never_is():
    tree = Tree("p", (0,))
    good, _ = tree.add_child(ROOT, (1,), seed=1)
    tree.reward[good] = 0.0
    for _ in range(50):
        selection.backup_mean(tree, good, 1.0)
    rng = np.random.default_rng(0)
    assert selection.wider_or_deeper(tree, ROOT, rng) == good
    bad = Tree("p", (0,))
    child, _ = bad.add_child(ROOT, (1,), seed=1)
    bad.reward[child] = 1.0
    for _ in range(50):
        selection.backup_mean(bad, child, 0.0)
    assert selection.wider_or_deeper(bad, ROOT, rng) is None


def test_backup_max_keeps_the_largest_value_below():
    tree = Tree("p", (0,))
    a, _ = tree.add_child(ROOT, (1,), seed=1)
    for value in (0.2, 0.8, 0.5):
        selection.backup_max(tree, a, value)
    assert tree.mean(ROOT) == pytest.approx(0.8)


def test_backup_decayed_sums_and_never_divides():
    tree = golden()
    before = tree.value_sum[:3].copy()
    selection.backup_decayed(tree, 2, -1.0)
    # leaf -1, its parent -.9, the root -.81
    np.testing.assert_allclose(tree.value_sum[:3] - before, [-0.81, -0.9, -1.0])


def test_ids_of_many_nodes_lie_in_one_buffer():
    tree = Tree("p", tuple(range(3000)))
    nodes = [tree.add_child(ROOT, (i, 7), seed=i)[0] for i in range(1000)]
    assert tree.step_ids(nodes[999]) == (999, 7)
    assert tree.first_child[nodes[0]] == NONE
