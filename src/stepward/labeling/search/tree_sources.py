"""Trees that a labelling run can take its solutions from, by name (``stepward label --search NAME``).

To add one, put a file with a decorated function into this folder, or name a module of another package in the
entry-point group ``stepward.searches``. The function's keyword options are what ``search_options`` may set::

    @register_tree("thompson")
    async def thompson(grower, scorer, *, iterations: int = 40):
        await search(grower, TreeSearch(my_rule, iterations=iterations))
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from stepward.labeling.search import entropy_tree, omegaprm, tree_search
from stepward.labeling.search.growth import Grower
from stepward.labeling.search.refinement import Refinement, by_least_score, refine
from stepward.labeling.search.scoring import ScoreQueue
from stepward.prm.errors import ConfigError
from stepward.prm.plugins import Registry
from stepward.prm.prompts import PromptTemplate

Grow = Callable[[Grower, ScoreQueue | None], Awaitable[object]]
"""Grows one problem's tree in place."""

Builder = TypeVar("Builder", bound=Callable[..., Awaitable[object]])


@dataclass(frozen=True, slots=True)
class RegisteredTree:
    """A search with what the registry knows of it.

    Attributes:
        grow: The function; its keyword arguments are its options.
        needs_scores: It needs a reward model.
    """

    grow: Callable[..., Awaitable[object]]
    needs_scores: bool


REGISTRY: Registry[RegisteredTree] = Registry("search", "stepward.labeling.search", "stepward.searches")


def register_tree(name: str, *, needs_scores: bool = False) -> Callable[[Builder], Builder]:
    """Decorator that files a search under ``name``. Raises ValueError where the name is taken."""
    return lambda grow: REGISTRY.file(name, RegisteredTree(grow, needs_scores), grow)


def trees() -> dict[str, RegisteredTree]:
    """All searches by name, in-tree and from entry points."""
    return REGISTRY.all()


def tree_faults(name: str, options: Mapping[str, object], *, has_scores: bool) -> list[str]:
    """What is wrong with a search that a configuration names."""
    known = trees().get(name)
    if known is None:
        return [f"search {name!r} is unknown; one of {', '.join(trees())}"]
    has = [p.name for p in inspect.signature(known.grow).parameters.values() if p.kind is p.KEYWORD_ONLY]
    faults = [
        f"search_options: {name} has no {option!r}; it has {', '.join(o for o in has if o != 'template')}"
        for option in sorted(set(options) - set(has))
    ]
    if known.needs_scores and not has_scores:
        faults.append(
            f"search {name!r} values what it draws by a reward model: give hint, a folder or Hub id"
        )
    return faults


def make_tree(name: str, options: Mapping[str, object], template: PromptTemplate | None = None) -> Grow:
    """The search of that name with its options.

    Args:
        name: Registry name.
        options: The search's own options.
        template: How a prompt of the search's own is wrapped, for one that has any (MCTSr).

    Raises:
        ConfigError: No such search or option.
    """
    if faults := tree_faults(name, options, has_scores=True):
        raise ConfigError(faults)
    grow = trees()[name].grow
    wraps = template is not None and "template" in inspect.signature(grow).parameters
    return partial(grow, **options, **({"template": template} if wraps else {}))


@register_tree("omegaprm")
async def omegaprm_tree(
    grower: Grower, scorer: ScoreQueue | None, *, num_rollouts: int = 8, searches: int = 100, alpha: float = 0.5,
    beta: float = 0.9, length: int = 500, exploration: float = 0.125,
) -> None:  # fmt: skip
    """OmegaPRM's tree, cut where steps end."""
    settings = omegaprm.OmegaPRM(
        num_rollouts, searches, at_steps=True, alpha=alpha, beta=beta, length=length, exploration=exploration
    )
    await omegaprm.build(grower, settings)


@register_tree("alphamath")
async def alphamath_tree(
    grower: Grower, scorer: ScoreQueue | None, *, width: int = 5, iterations: int = 40
) -> None:
    """AlphaMath's PUCT."""
    await tree_search.search(grower, tree_search.alphamath(width, iterations))


@register_tree("rstar")
async def rstar_tree(
    grower: Grower, scorer: ScoreQueue | None, *, width: int = 12, iterations: int = 48
) -> None:
    """rStar-Math's UCT."""
    await tree_search.search(grower, tree_search.rstar(width, iterations))


@register_tree("rest_mcts", needs_scores=True)
async def rest_mcts_tree(
    grower: Grower, scorer: ScoreQueue | None, *, width: int = 3, iterations: int = 40, rollout_share: float = 0.5
) -> None:  # fmt: skip
    """ReST-MCTS*: values of a reward model mixed with rollouts."""
    await tree_search.search(grower, tree_search.rest_mcts(width, iterations, rollout_share), scorer)


@register_tree("grounded")
async def grounded_tree(
    grower: Grower, scorer: ScoreQueue | None, *, width: int = 3, iterations: int = 12, decay: float = 0.9
) -> None:  # fmt: skip
    """UCT with GroundedPRM's decayed sums."""
    await tree_search.search(grower, tree_search.grounded(width, iterations, decay))


@register_tree("best_path")
async def best_path_tree(
    grower: Grower, scorer: ScoreQueue | None, *, width: int = 4, iterations: int = 40
) -> None:
    """UCT where a node is worth the best below it."""
    await tree_search.search(grower, tree_search.best_path(width, iterations))


@register_tree("tree_plv")
async def tree_plv_tree(
    grower: Grower, scorer: ScoreQueue | None, *, width: int = 4, iterations: int = 40
) -> None:
    """Tree-PLV's best first."""
    await tree_search.search(grower, tree_search.tree_plv(width, iterations))


@register_tree("ab_mcts")
async def ab_mcts_tree(grower: Grower, scorer: ScoreQueue | None, *, iterations: int = 40) -> None:
    """AB-MCTS: wider or deeper."""
    await tree_search.search(grower, tree_search.ab_mcts(iterations))


@register_tree("entropy_tree")
async def entropy_branching_tree(
    grower: Grower, scorer: ScoreQueue | None, *, chains: int = 6, branches: int = 2, draws: int = 1, rounds: int = 1
) -> None:  # fmt: skip
    """TreeRL's branching, before the steps of the most uncertain tokens."""
    settings = entropy_tree.EntropyTree(chains, branches, draws, rounds, at_steps=True)
    await entropy_tree.build(grower, settings)


@register_tree("mctsr", needs_scores=True)
async def mctsr_tree(
    grower: Grower, scorer: ScoreQueue | None, *, iterations: int = 8, children: int = 2, exploration: float = 1.4,
    template: PromptTemplate | None = None,
) -> None:  # fmt: skip
    """MCTSr: critique and rewrite, rewarded by the least step score."""
    if scorer is None:
        raise ValueError("MCTSr rewards solutions by a reward model: hand one in")
    reward = by_least_score(partial(scorer.score, grower.problem))
    settings = Refinement(reward, iterations, children, exploration)
    if template is not None:
        settings = Refinement(reward, iterations, children, exploration, template)
    await refine(grower, settings)
