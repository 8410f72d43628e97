"""Monte Carlo tree search over steps: select, expand, evaluate, back up. AlphaMath, rStar-Math, ReST-MCTS* by settings.

One iteration descends by a selection rule to a node with room for children, draws steps there, values each new one
(a rollout, a reward model, or a mixture) and backs the value up its path.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from stepward.labeling.search.growth import Grower, OutOfTokens, all_of, solved
from stepward.labeling.search.scoring import ScoreQueue
from stepward.labeling.selection import (
    ChildRule,
    LeafRule,
    backup_decayed,
    backup_max,
    backup_mean,
    best_first,
    descend,
    descend_wider_or_deeper,
    puct,
    uct,
    value_weighted,
)
from stepward.labeling.tree import ROOT, Tree
from stepward.prm.seeds import derive_seed

Backup = Callable[[Tree, int, float], None]


@dataclass(frozen=True, slots=True)
class TreeSearch:
    """Settings of a search.

    Attributes:
        rule: Which child to follow, from the root to a node with room for children.
        width: Steps drawn when a node is expanded.
        iterations: Rounds of select, expand, evaluate, back up.
        max_depth: Most steps of a solution; a node there is valued by a rollout and not expanded.
        backup: How a value goes up its path.
        rollout_share: Weight of the rollout's value against the reward model's: 1 = rollouts alone.
        signed: Values are +1 and -1 (AlphaMath, rStar-Math) and not 1 and 0.
        leaf: Which node to expand, where the search does not descend by ``rule``.
    """

    rule: ChildRule
    width: int = 4
    iterations: int = 40
    max_depth: int = 16
    backup: Backup = backup_mean
    rollout_share: float = 1.0
    signed: bool = False
    leaf: LeafRule | None = None


def alphamath(width: int = 5, iterations: int = 40) -> TreeSearch:
    """AlphaMath's (Chen et al. 2024): PUCT with c = 1.5, 5 samples a step, 40 iterations, depth 8, values +-1."""
    return TreeSearch(puct(1.5), width, iterations, max_depth=8, signed=True)


def rstar(width: int = 12, iterations: int = 48) -> TreeSearch:
    """rStar-Math's first rounds (Guan et al. 2025): UCT with c = 2, 12 samples, 48 iterations, depth 16, values +-1."""
    return TreeSearch(uct(2.0), width, iterations, max_depth=16, signed=True)


def rest_mcts(width: int = 3, iterations: int = 40, rollout_share: float = 0.5) -> TreeSearch:
    """ReST-MCTS*'s (Zhang et al. 2024): V + .7 sqrt(2 ln N / n), branch 3, value mixed half and half with a rollout."""
    return TreeSearch(value_weighted(0.7), width, iterations, rollout_share=rollout_share)


def grounded(width: int = 3, iterations: int = 12, decay: float = 0.9) -> TreeSearch:
    """GroundedPRM's backup (sum, decayed by .9 a step) over UCT with c = 1.4."""
    return TreeSearch(uct(1.4), width, iterations, 9, partial(backup_decayed, decay=decay), signed=True)


def best_path(width: int = 4, iterations: int = 40) -> TreeSearch:
    """Every node keeps the largest value below it."""
    return TreeSearch(uct(1.4), width, iterations, backup=backup_max)


def tree_plv(width: int = 4, iterations: int = 40) -> TreeSearch:
    """Tree-PLV's (He et al. 2024, arXiv 2407.00390): the open leaf of highest mean outcome is expanded, best first."""
    return TreeSearch(uct(0.0), width, iterations, leaf=lambda tree, rng: best_first(tree))


def ab_mcts(iterations: int = 40, rollout_share: float = 1.0) -> TreeSearch:
    """AB-MCTS (Inoue et al. 2025, arXiv 2503.04412): at every node Thompson sampling decides, a new child or deeper."""
    return TreeSearch(uct(0.0), 1, iterations, rollout_share=rollout_share, leaf=descend_wider_or_deeper)


async def search(grower: Grower, settings: TreeSearch, scorer: ScoreQueue | None = None) -> Tree:
    """Grow one problem's tree until the iterations or the tokens are spent.

    Args:
        grower: The problem's tree and engines.
        settings: The search.
        scorer: A reward model, where ``rollout_share`` is below 1.

    Returns:
        The tree, also where the budget ended the search early.
    """
    if settings.rollout_share < 1 and scorer is None:
        raise ValueError(
            f"rollout_share is {settings.rollout_share}: a value that is mixed needs a reward model"
        )
    tree = grower.tree
    rng = np.random.default_rng(derive_seed(grower.seed, grower.problem.id, "search"))
    try:
        for _ in range(settings.iterations):
            if settings.leaf is None:
                leaf = descend(tree, settings.rule, width=settings.width)
            else:
                leaf = settings.leaf(tree, rng)
            if leaf is None:
                break
            if tree.terminal[leaf] or tree.depth[leaf] >= settings.max_depth:
                children = [leaf]
            else:
                children = list(dict.fromkeys(await grower.expand(leaf, settings.width)))
            values = await all_of(_evaluate(grower, n, settings, scorer) for n in children)
            for node, value in zip(children, values, strict=True):
                if value is not None:
                    settings.backup(tree, node, 2 * value - 1 if settings.signed else value)
            if not children and leaf == ROOT and not tree.num_children[ROOT]:
                break
    except OutOfTokens:
        pass
    return tree


async def _evaluate(
    grower: Grower, node: int, settings: TreeSearch, scorer: ScoreQueue | None
) -> float | None:
    """The value of a node; a fault of ours gives none, and no visit."""
    value = 0.0
    if settings.rollout_share > 0 or grower.tree.terminal[node]:
        index = int(grower.tree.counts[node].sum())
        outcome = solved(await grower.complete(node, index))
        if outcome is None:
            return None
        value = outcome
    share = 1.0 if grower.tree.terminal[node] else settings.rollout_share
    if share < 1 and scorer is not None:
        score = (await scorer.score(grower.problem, grower.step_texts(node)))[-1]
        grower.tree.reward[node] = score
        value = share * value + (1 - share) * score
    elif np.isnan(grower.tree.reward[node]):
        grower.tree.reward[node] = value
    return value
