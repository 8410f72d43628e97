"""Any allocation, with each state of a problem drawn once.

Solutions that begin alike are in one state there (``evidence.prefix_nodes``). What was drawn at it for one of them is
looked up for the others instead of being drawn again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepward.labeling.evidence import AllocationRule, Draw, SolutionEvidence
from stepward.prm.types import Allocation, Outcome


@dataclass(frozen=True, slots=True)
class EqualStatesOnce:
    """An allocation that sees at a prefix whatever was drawn from its state, and draws there for one solution only.

    Attributes:
        rule: Chooses among the prefixes.
    """

    rule: AllocationRule

    @property
    def kind(self) -> Allocation:
        """The inner rule's."""
        return self.rule.kind

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """What the inner rule asks; of several solutions that ask at one state the first gets the rollouts."""
        asked = self.rule.next_draws(merged(solutions))
        first: dict[int, int] = {}
        draws: list[Draw] = []
        for draw in asked:
            node = _node(solutions, draw)
            if node is None or first.setdefault(node, draw.solution) == draw.solution:
                draws.append(draw)
        return draws


def merged(solutions: Sequence[SolutionEvidence]) -> list[SolutionEvidence]:
    """The evidence with the draws of each state in every solution through it; the question's stay as they are."""
    pools: dict[int, tuple[Outcome, ...]] = {}
    for each in solutions:
        for node, draws in zip(each.nodes[1:], each.draws[1:], strict=bool(each.nodes)):
            pools[node] = pools.get(node, ()) + draws
    return [
        replace(each, draws=(each.draws[0], *(pools[node] for node in each.nodes[1:])))
        if each.nodes
        else each
        for each in solutions
    ]


def _node(solutions: Sequence[SolutionEvidence], draw: Draw) -> int | None:
    """The state of a draw's prefix, None where it is the question or not known."""
    nodes = solutions[draw.solution].nodes
    return nodes[draw.prefix] if nodes and draw.prefix else None
