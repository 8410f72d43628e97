"""Trees -> credit for each step, for reinforcement learning. Pure functions of stored counts.

Rewards r are 1 for a right and 0 for a wrong final answer; draws without a verdict are no leaves. A step's own
value is the mean of r over the leaves below it. Where a group has no spread its normalised advantages are 0.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.tree import ROOT, Tree
from stepward.prm.types import Outcome

Floats = NDArray[np.float64]

_RIGHT, _WRONG = list(Outcome).index(Outcome.RIGHT), list(Outcome).index(Outcome.WRONG)


@dataclass(frozen=True, slots=True)
class LeafValues:
    """Values of all nodes by the leaves below them.

    Attributes:
        value: V(n), shape [nodes]; NaN where no leaf below has a verdict.
        leaves: |L(n)|, shape [nodes].
    """

    value: Floats
    leaves: NDArray[np.int64]


def leaf_values(tree: Tree, *, pooled: bool = False) -> LeafValues:
    """V(n) and |L(n)|: every graded rollout that started at a node or below it is a leaf.

    Args:
        tree: The tree.
        pooled: Nodes of equal state share their leaves (their sum), see ``labeling.signatures``.
    """
    right = tree.counts[: len(tree), _RIGHT].copy()
    decided = right + tree.counts[: len(tree), _WRONG]
    # A child always has a larger number than its parent, so one pass backwards sums subtrees without recursion.
    for node in range(len(tree) - 1, ROOT, -1):
        parent = tree.parent[node]
        right[parent] += right[node]
        decided[parent] += decided[node]
    if pooled:
        state = tree.state[: len(tree)]
        shared = np.zeros((2, int(state.max()) + 1), np.int64)
        np.add.at(shared[0], state, right)
        np.add.at(shared[1], state, decided)
        right, decided = shared[0][state], shared[1][state]
    with np.errstate(invalid="ignore", divide="ignore"):
        return LeafValues(right / decided, decided)


def tree_rpo(tree: Tree, *, normalise: bool = False) -> Floats:
    """A(n) = V(n) - mean of V over n and its siblings, optionally over their standard deviation (TreeRPO).

    Returns:
        Shape [nodes]; 0 for the root, NaN where V is unknown.
    """
    value = leaf_values(tree).value
    advantage = np.full(len(tree), np.nan)
    advantage[ROOT] = 0.0
    for parent in range(len(tree)):
        group = list(tree.children(parent))
        known = [n for n in group if not np.isnan(value[n])]
        if known:
            centred = value[known] - value[known].mean()
            advantage[known] = _over_spread(centred, value[known]) if normalise else centred
    return advantage


def tree_rl(tree: Tree) -> Floats:
    """R(n) = ((V(n) - V(root)) + (V(n) - V(parent))) / sqrt(|L(n)|) (TreeRL, Hou et al. 2025).

    Returns:
        Shape [nodes]; 0 for the root, NaN where a value is unknown.
    """
    leaves = leaf_values(tree)
    parent = np.maximum(tree.parent[: len(tree)], ROOT)
    v = leaves.value
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((v - v[ROOT]) + (v - v[parent])) / np.sqrt(leaves.leaves)


def tree_grpo(trees: Sequence[Sequence[float]]) -> list[Floats]:
    """A = (r - mean in its tree) / std in it + (r - mean over all trees of the problem) / std (Tree-GRPO).

    Args:
        trees: Rewards of the leaves of each tree of one problem.

    Returns:
        One array a tree, in the order of its leaves.
    """
    everything = np.array([r for rewards in trees for r in rewards], np.float64)
    advantages: list[Floats] = []
    for rewards in trees:
        r = np.asarray(rewards, np.float64)
        inside = _over_spread(r - r.mean(), r) if len(r) else r
        across = _over_spread(r - everything.mean(), everything) if len(r) else r
        advantages.append(inside + across)
    return advantages


def group_baseline(rewards: Sequence[float], *, quantile: float = 0.5) -> Floats:
    """r minus a quantile of the group: the median (MC-GRPO), or the K-quantile (QAE).

    Args:
        rewards: Of one problem's solutions; at least one.
        quantile: In [0, 1]; 0.5 is the median.
    """
    r = np.asarray(rewards, np.float64)
    return r - np.quantile(r, quantile)


def gigpo(
    episodes: Sequence[Sequence[tuple[Hashable, float]]],
    *,
    weight: float = 1.0,
    discount: float = 0.95,
    normalise: bool = True,
) -> list[Floats]:
    """A = A_episode + w A_step (GiGPO, Feng et al. 2025).

    Args:
        episodes: For each rollout of one problem its steps as (anchor state before the step, reward of the step).
        weight: w.
        discount: Of later rewards within an episode.
        normalise: Divide both parts by the standard deviation of their group.

    Returns:
        For each rollout one number a step. A_episode is the centred total reward; A_step is the discounted return
        after a step, centred among all steps taken from an equal anchor state.
    """
    totals = np.array([sum(r for _, r in episode) for episode in episodes], np.float64)
    episode_part = totals - totals.mean()
    if normalise:
        episode_part = _over_spread(episode_part, totals)
    returns: list[Floats] = []
    groups: dict[Hashable, list[float]] = {}
    for episode in episodes:
        tail = 0.0
        values = np.zeros(len(episode))
        for t in range(len(episode) - 1, -1, -1):
            tail = episode[t][1] + discount * tail
            values[t] = tail
        returns.append(values)
        for (state, _), value in zip(episode, values, strict=True):
            groups.setdefault(state, []).append(float(value))
    result: list[Floats] = []
    for number, episode in enumerate(episodes):
        step_part = np.zeros(len(episode))
        for t, (state, _) in enumerate(episode):
            group = np.asarray(groups[state])
            centred = np.array([returns[number][t] - group.mean()])
            step_part[t] = (_over_spread(centred, group) if normalise else centred)[0]
        result.append(episode_part[number] + weight * step_part)
    return result


def rtmc(episodes: Sequence[tuple[Sequence[tuple[Hashable, Hashable]], float]]) -> list[Floats]:
    """A(s, a) = Q(s, a) - V(s) over the rollouts of one problem (RTMC).

    Args:
        episodes: For each rollout its (state signature, action signature) pairs, and its return.

    Returns:
        For each rollout one number a step. Q is the mean return of rollouts through (s, a), V of those through s;
        a rollout that passes twice counts once.
    """
    through: dict[Hashable, dict[int, float]] = {}
    for number, (pairs, value) in enumerate(episodes):
        for state, action in pairs:
            through.setdefault(("s", state), {})[number] = value
            through.setdefault(("sa", state, action), {})[number] = value

    def mean(key: Hashable) -> float:
        return float(np.mean(list(through[key].values())))

    return [np.array([mean(("sa", s, a)) - mean(("s", s)) for s, a in pairs]) for pairs, _ in episodes]


def progress_advantage(
    token_logprobs: Sequence[Sequence[float]],
    reference_logprobs: Sequence[Sequence[float]],
    *,
    beta: float = 0.05,
) -> Floats:
    """Credit of a step = beta * sum over its tokens of log pi_RL / pi_ref.

    Args:
        token_logprobs: For each step the tokens' log-probabilities under the trained policy, in nats.
        reference_logprobs: The same under the reference.
        beta: Scale.
    """
    pairs = zip(token_logprobs, reference_logprobs, strict=True)
    return beta * np.array([float(np.sum(np.subtract(a, b))) for a, b in pairs])


def information_gain(gold_logprobs: Sequence[float]) -> Floats:
    """Credit of a step = max(0, g_t - max of g before t), g_t = log p(gold answer | steps 1..t).

    Args:
        gold_logprobs: g_0 (the bare problem) to g_T, in nats; T+1 numbers.

    Returns:
        T numbers.
    """
    g = np.asarray(gold_logprobs, np.float64)
    return np.maximum(0.0, g[1:] - np.maximum.accumulate(g)[:-1])


def prover_advantage(values: Sequence[float], *, best_of: int = 4, weight: float = 0.5) -> Floats:
    """Q_t + a A_t, A_t = Q^mu_t - Q^mu_{t-1} with the prover mu = best-of-K of the policy (PAV, Setlur et al. 2024).

    Args:
        values: Q of the policy at prefixes 0..T; T+1 numbers in [0, 1].
        best_of: K; Q^mu = 1 - (1 - Q)^K.
        weight: a, tuned on held-out problems (.5 for small policies in search).

    Returns:
        T numbers, one a step.
    """
    q = np.asarray(values, np.float64)
    prover = 1.0 - (1.0 - q) ** best_of
    return q[1:] + weight * np.diff(prover)


def _over_spread(centred: Floats, group: Floats) -> Floats:
    spread = float(group.std())
    return centred / spread if spread > 0 else np.zeros_like(centred)
