"""Which child to follow, or which leaf to open: plain functions of one named type over a tree.

A rule gives each candidate a number; the search takes the largest, ties to the node that was added first. Every
formula is from the paper that its docstring names; where public code differs, the difference is said.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.tree import NONE, Tree

Floats = NDArray[np.float64]

ChildRule = Callable[[Tree, int, Sequence[int]], Floats]
"""(tree, parent, children) -> one number a child, shape [children]."""

LeafRule = Callable[[Tree, np.random.Generator], int | None]
"""(tree, the search's random numbers) -> the node to expand next, or None where the search is over."""


def uct(exploration: float = 2.0, *, unvisited: float = 0.0) -> ChildRule:
    """Q + c sqrt(ln N_parent / N) (Kocsis and Szepesvari 2006); rStar-Math with c = 2, bonus 0 if unvisited.

    Args:
        exploration: c.
        unvisited: Number of a child without visits: 0 (rStar-Math), or infinity to try each child once.
    """

    def rule(tree: Tree, parent: int, children: Sequence[int]) -> Floats:
        nodes = np.asarray(children)
        visits = tree.visits[nodes].astype(np.float64)
        seen = np.maximum(visits, 1.0)
        bonus = exploration * np.sqrt(math.log(max(int(tree.visits[parent]), 1)) / seen)
        return np.where(visits > 0, tree.value_sum[nodes] / seen + bonus, unvisited)

    return rule


def puct(exploration: float = 1.5) -> ChildRule:
    """Q + c p sqrt(N_parent) / (1 + N): AlphaMath (Chen et al. 2024, eq. 2; c = 1.5 in training, 1.25 in use).

    The prior p is the node's; AlphaMath takes exp of the mean token log-probability. Q of an unvisited child is 0.
    """

    def rule(tree: Tree, parent: int, children: Sequence[int]) -> Floats:
        nodes = np.asarray(children)
        visits = tree.visits[nodes].astype(np.float64)
        q = tree.value_sum[nodes] / np.maximum(visits, 1.0)
        return q + exploration * tree.prior[nodes] * math.sqrt(float(tree.visits[parent])) / (1.0 + visits)

    return rule


def value_weighted(exploration: float = 0.7, *, unvisited: float = 1.0) -> ChildRule:
    """V + c sqrt(2 ln N_parent / N), an unvisited child counts 1: ReST-MCTS* (Zhang et al. 2024)."""

    def rule(tree: Tree, parent: int, children: Sequence[int]) -> Floats:
        nodes = np.asarray(children)
        visits = tree.visits[nodes].astype(np.float64)
        seen = np.maximum(visits, 1.0)
        bonus = exploration * np.sqrt(2.0 * math.log(max(int(tree.visits[parent]), 1)) / seen)
        return np.where(visits > 0, tree.value_sum[nodes] / seen + bonus, unvisited)

    return rule


def refinement(exploration: float = 1.4, epsilon: float = 1e-6) -> ChildRule:
    """Q + c sqrt((ln N_parent + 1) / (N + eps)), Q = (min R + mean R) / 2: MCTSr (Zhang et al. 2024, eqs. 1 and 3).

    The tree keeps sum and maximum of rewards; MCTSr's Q is what its backup has left in ``value_sum / visits``.
    """

    def rule(tree: Tree, parent: int, children: Sequence[int]) -> Floats:
        nodes = np.asarray(children)
        visits = tree.visits[nodes].astype(np.float64)
        q = tree.value_sum[nodes] / np.maximum(visits, 1.0)
        return q + exploration * np.sqrt(
            (math.log(max(int(tree.visits[parent]), 1)) + 1.0) / (visits + epsilon)
        )

    return rule


def descend(tree: Tree, rule: ChildRule, *, width: int) -> int:
    """Follow the best child from the root to a node that is terminal or was drawn from fewer than ``width`` times.

    Draws count and not children: identical steps share a child, and a node that never has ``width`` different ones
    would else hold the search for ever.

    Args:
        tree: The tree.
        rule: Numbers for the children of a node.
        width: A node with fewer draws is not fully expanded and is returned.
    """
    node = 0
    while not tree.terminal[node]:
        children = list(tree.children(node))
        if not children or sum(int(tree.draws[c]) for c in children) < width:
            break
        node = children[int(np.argmax(rule(tree, node, children)))]
    return node


def descend_wider_or_deeper(tree: Tree, rng: np.random.Generator) -> int:
    """Follow ``wider_or_deeper`` from the root to the node that asks for a new child, or to an end (AB-MCTS)."""
    node = 0
    while not tree.terminal[node]:
        child = wider_or_deeper(tree, node, rng)
        if child is None:
            break
        node = child
    return node


def best_first(tree: Tree) -> int | None:
    """The open leaf with the highest mean value, or None where every leaf is terminal: Tree-PLV (He et al. 2024).

    A leaf that was never valued counts as its parent.
    """
    leaves = [n for n in range(len(tree)) if tree.first_child[n] == NONE and not tree.terminal[n]]
    if not leaves:
        return None

    def value(node: int) -> float:
        while not tree.visits[node] and tree.parent[node] != NONE:
            node = int(tree.parent[node])
        return tree.mean(node) if tree.visits[node] else 0.0

    return max(leaves, key=lambda n: (value(n), -n))


def omegaprm_priority(
    mc: float, rollout_tokens: int, visits: int, total_visits: int,
    *, alpha: float = 0.5, beta: float = 0.9, length: int = 500, exploration: float = 0.125,
) -> float:  # fmt: skip
    """Q(s, r) + U(s) of OmegaPRM (Luo et al. 2024, eqs. 2 and 3).

    Q = alpha^(1 - MC(s)) beta^(len(r) / L), U = c sqrt(sum_i N(s_i)) / (1 + N(s)). The length is in tokens (openr
    counts words), N is counted at selection (openr: at estimation).

    Args:
        mc: MC(s), share of right rollouts at the state.
        rollout_tokens: len(r).
        visits: N(s).
        total_visits: Sum of N over all states of the pool.
        alpha: Weight of the value.
        beta: Weight of the length.
        length: L.
        exploration: c_puct.
    """
    q = alpha ** (1.0 - mc) * beta ** (rollout_tokens / length)
    return q + exploration * math.sqrt(total_visits) / (1 + visits)


def entropy_branches(entropies: Sequence[float], number: int, *, skip_last: int = 1) -> list[int]:
    """Positions where to branch: the ``number`` tokens of highest entropy, in order: TreeRL (Hou et al. 2025).

    Args:
        entropies: Entropy in nats of the policy at each token of a chain, shape [tokens].
        number: How many branches.
        skip_last: Tokens at the end where a branch would change nothing.

    Returns:
        Sorted positions; ties go to the earlier token.
    """
    usable = max(0, len(entropies) - skip_last)
    order = sorted(range(usable), key=lambda i: (-entropies[i], i))
    return sorted(order[:number])


def wider_or_deeper(
    tree: Tree, node: int, rng: np.random.Generator, *, a: float = 1.0, b: float = 1.0
) -> int | None:
    """AB-MCTS (Inoue et al. 2025): Thompson sampling between a new child and the children that are there.

    Every arm has a Beta posterior over rewards in [0, 1]: the new-child arm from the rewards of the children's own
    first values (their ``reward``), an existing child from what was backed up through it.

    Returns:
        The child to go on with, or None for a new child.
    """
    children = list(tree.children(node))
    rewards = np.array([tree.reward[c] for c in children], np.float64)
    rewards = rewards[~np.isnan(rewards)]
    new = rng.beta(a + float(rewards.sum()), b + float((1.0 - rewards).sum()))
    best, chosen = new, None
    for child in children:
        total, n = float(tree.value_sum[child]), float(tree.visits[child])
        draw = rng.beta(a + total, b + n - total)
        if draw > best:
            best, chosen = draw, child
    return chosen


def backup_mean(tree: Tree, node: int, value: float) -> None:
    """Add a leaf's value to every node of its path: Q is the mean."""
    for n in tree.path(node):
        tree.visits[n] += 1
        tree.value_sum[n] += value
        tree.value_max[n] = max(tree.value_max[n], value)


def backup_max(tree: Tree, node: int, value: float) -> None:
    """Every node of the path keeps the largest value below it: ``value_sum / visits`` is that maximum."""
    for n in tree.path(node):
        tree.visits[n] += 1
        tree.value_max[n] = max(tree.value_max[n], value)
        tree.value_sum[n] = tree.value_max[n] * tree.visits[n]


def backup_decayed(tree: Tree, node: int, value: float, *, decay: float = 0.9) -> None:
    """GroundedPRM's code: the node at distance d above the leaf gets decay^d times the value, summed and never divided.

    A node's label is then the sign of ``value_sum``.
    """
    for distance, n in enumerate(reversed(tree.path(node))):
        tree.visits[n] += 1
        tree.value_sum[n] += decay**distance * value
        tree.value_max[n] = max(tree.value_max[n], value)
