"""MCTS with a reward model's values and no rollouts to a gold answer: ReST-MCTS* (Zhang et al. 2024, arXiv 2406.03816).

Selection by V + c sqrt(2 ln N_parent / N), branches of ``width``; a new state's value is the reward
model's, optionally mixed with a short greedy rollout, V <- (1 - a) V + a max V over ``rollout_steps`` further steps;
backup by visit-weighted means, V = sum n_c V_c / sum n_c. A solution whose value passes ``end_gate`` ends the pass.
"""

import numpy as np

from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.registry import SearchMethod, at_least, register_search
from stepward.labeling.selection import ChildRule, backup_mean, value_weighted
from stepward.labeling.tree import ROOT


@register_search("rest_mcts")
def rest_mcts(
    *, width: int = 3, iterations: int = 40, exploration: float = 0.7,
    end_gate: float = 0.9, rollout_steps: int = 0, mix: float = 0.5,
) -> SearchMethod:  # fmt: skip
    """MCTS* for answers.

    Args:
        width: Steps drawn when a state is expanded (paper: 3).
        iterations: Rounds of a pass; later passes widen the same tree.
        exploration: c.
        end_gate: Value of an ended solution that ends the pass.
        rollout_steps: Greedy steps beyond the best new state (paper: 3; 0 leaves them out).
        mix: a, the rollout's share.
    """
    at_least(1, width=width, iterations=iterations)
    at_least(0, rollout_steps=rollout_steps)
    rule = value_weighted(exploration)

    async def one_pass(x: Exploration) -> None:
        for _ in range(iterations):
            leaf = _descend(x, rule, width * (x.passes + 1))
            if x.tree.terminal[leaf] or not x.is_open(leaf):
                new = [leaf]
            else:
                x.frontier = [leaf]
                missing = width * (x.passes + 1) - x.drawn_at(leaf)
                new = list(dict.fromkeys((await x.expand([(leaf, missing)]))[0]))
                if not new:
                    return
            values = await x.values(new)
            if rollout_steps and new != [leaf]:
                best = int(np.argmax(values))
                values[best] = (1 - mix) * values[best] + mix * await _rollout(
                    x, new[best], rollout_steps, width
                )
            for node, value in zip(new, values, strict=True):
                backup_mean(x.tree, node, value)
                if x.tree.terminal[node] and node not in x.found:
                    x.found.append(node)
            x.frontier = []
            if any(x.tree.terminal[n] and v >= end_gate for n, v in zip(new, values, strict=True)):
                return

    return one_pass


def _descend(x: Exploration, rule: ChildRule, draws: int) -> int:
    """Follow the best child to a state that has ended or had fewer than ``draws`` draws.

    Draws are counted, not children: identical steps share a state, and one that always goes on in the same way would
    never have children enough.
    """
    node = ROOT
    while x.is_open(node) and x.drawn_at(node) >= draws:
        children = list(x.tree.children(node))
        if not children:
            break
        node = children[int(np.argmax(rule(x.tree, node, children)))]
    return node


async def _rollout(x: Exploration, node: int, steps: int, width: int) -> float:
    """The highest value along a greedy rollout from a state."""
    highest = x.value(node)
    for _ in range(steps):
        children = (await x.expand([(node, width)]))[0]
        if not children:
            break
        await x.score(children)
        node = (await x.best(children, 1))[0]
        highest = max(highest, x.value(node))
    return highest
