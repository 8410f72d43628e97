"""Entropy-guided branching: TreeRL's EPTree (Hou et al. 2025, arXiv 2506.11902, section 3.1).

M chains are drawn from the root. In every round the N tokens of highest uncertainty of each chain that has not been
cut are found, T continuations are drawn from just before each of them, and these are the next round's chains. The
uncertainty of a token is its cross-entropy under the policy, -log pi(y_t | y_<t), as the paper takes it: it needs the
sampled tokens' log-probabilities and nothing else.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from stepward.labeling.search.growth import Grower, OutOfTokens, all_of
from stepward.labeling.selection import entropy_branches
from stepward.labeling.tree import ROOT, Tree
from stepward.prm.errors import EngineError
from stepward.prm.types import Outcome, Rollout


@dataclass(frozen=True, slots=True)
class EntropyTree:
    """Settings.

    Attributes:
        chains: M, drawn from the root.
        branches: N, cut tokens of a chain.
        draws: T, continuations from each cut.
        rounds: L, how often chains are cut.
        at_steps: Branch before the step that holds an uncertain token, not before the token: for rows, whose prefixes
            are steps.
    """

    chains: int = 6
    branches: int = 2
    draws: int = 1
    rounds: int = 1
    at_steps: bool = False


async def build(grower: Grower, settings: EntropyTree) -> Tree:
    """Grow one problem's tree; its leaves are whole solutions, its inner nodes the tokens where they part.

    Returns:
        The tree, also where the budget ended it early.

    Raises:
        EngineError: A chain came back without log-probabilities.
    """
    chains: list[tuple[int, Rollout]] = []
    drawn_at: Counter[int] = Counter()
    try:
        chains = await _draw(grower, drawn_at, [ROOT] * settings.chains)
        for _ in range(settings.rounds):
            cuts = [c for node, chain in chains for c in _cut(grower, node, chain, settings)]
            chains = []
            chains = await _draw(grower, drawn_at, [c for c in cuts for _ in range(settings.draws)])
    except OutOfTokens:
        pass
    for node, chain in chains:
        _close(grower, node, chain.token_ids, chain)
    return grower.tree


async def _draw(grower: Grower, drawn_at: Counter[int], nodes: Sequence[int]) -> list[tuple[int, Rollout]]:
    """One continuation a node, each draw of a node with an index of its own; failed and empty ones are left out."""
    places: list[tuple[int, int]] = []
    for node in nodes:
        places.append((node, drawn_at[node]))
        drawn_at[node] += 1
    drawn = await all_of(grower.complete(node, i, count=False) for node, i in places)
    return [
        (node, r)
        for (node, _), r in zip(places, drawn, strict=True)
        if r.outcome is not Outcome.ERROR and r.token_ids
    ]


def _cut(grower: Grower, node: int, chain: Rollout, settings: EntropyTree) -> list[int]:
    """The chain as a path with a node before each of its most uncertain tokens; its end is counted in a leaf."""
    if chain.logprobs is None:
        raise EngineError(
            f"branching by entropy for problem {chain.problem_id}: the engine gave no log-probabilities; use another"
        )
    cuts: list[int] = []
    start = 0
    positions = _positions(chain.logprobs, settings.branches)
    if settings.at_steps:
        positions = _step_starts(grower, node, chain, positions)
    for position in positions:
        if position == 0:
            cuts.append(node)  # the chain parts at its own beginning
            continue
        node, _ = grower.tree.add_child(
            node, chain.token_ids[start:position], seed=_span_seed(chain, position)
        )
        cuts.append(node)
        start = position
    _close(grower, node, chain.token_ids[start:], chain)
    return cuts


def _positions(logprobs: Sequence[float], number: int) -> list[int]:
    return entropy_branches([-p for p in logprobs], number)


def _step_starts(grower: Grower, node: int, chain: Rollout, positions: Sequence[int]) -> list[int]:
    """Where in the chain the steps of these tokens begin, each once."""
    before = grower.tree.prefix(node).solution_ids
    steps = grower.step_format.split_ids(before + chain.token_ids, grower.policy.tokenizer)
    ends = accumulate(len(s.token_ids) for s in steps)
    starts = [0, *(e - len(before) for e in ends if e > len(before))]
    return sorted({max(s for s in starts if s <= p) for p in positions})


def _close(grower: Grower, node: int, ids: Sequence[int], chain: Rollout) -> None:
    leaf, _ = grower.tree.add_child(node, ids, seed=chain.seed, terminal=True)
    grower.tree.add_outcome(leaf, chain.outcome or Outcome.ERROR)


def _span_seed(chain: Rollout, position: int) -> int:
    """A span of a chain is no draw of its own: its "seed" only names it."""
    return -(1 + (chain.seed & 0xFFFF_FFFF) * 65536 + position)
