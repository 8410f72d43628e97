"""Trees -> pairs of sibling steps, for preference training. A pair shares its prefix to the token.

Every pair keeps both values and how many verdicts they rest on, so that a stricter filter can be applied later.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations

from stepward.labeling.advantages import LeafValues, leaf_values
from stepward.labeling.tree import Tree


@dataclass(frozen=True, slots=True)
class StepPair:
    """Two steps drawn at one node, the better first.

    Attributes:
        parent: The node that both continue.
        chosen: Node of the better step.
        rejected: Node of the worse step.
        chosen_value: Its V.
        rejected_value: The other's V.
        chosen_leaves: Verdicts that the value rests on.
        rejected_leaves: The same for the other.
        weight: 1, or the advantage gap (Step-APO).
    """

    parent: int
    chosen: int
    rejected: int
    chosen_value: float
    rejected_value: float
    chosen_leaves: int
    rejected_leaves: int
    weight: float = 1.0

    @property
    def gap(self) -> float:
        """Difference of the values, > 0."""
        return self.chosen_value - self.rejected_value


def sibling_pairs(
    tree: Tree,
    *,
    margin: float = 0.0,
    min_leaves: int = 1,
    weigh_by_gap: bool = False,
    texts: Sequence[str] = (),
    min_edit: int = 0,
) -> Iterator[StepPair]:
    """All pairs of siblings whose values differ by more than ``margin`` (Tree-PLV; SVPO).

    Args:
        tree: The tree.
        margin: Least difference of V, exclusive.
        min_leaves: Least verdicts below either step.
        weigh_by_gap: Weigh a pair by its gap of advantages, which among siblings is the gap of values (Step-APO).
        texts: Text of each node's step, by node, for ``min_edit``.
        min_edit: Least number of characters that two steps do not share; two spellings of one step are no choice.
    """
    leaves = leaf_values(tree)
    for parent in range(len(tree)):
        known = [n for n in tree.children(parent) if leaves.leaves[n] >= min_leaves]
        for a, b in combinations(known, 2):
            better, worse = (a, b) if leaves.value[a] >= leaves.value[b] else (b, a)
            if leaves.value[better] - leaves.value[worse] <= margin:
                continue
            if min_edit and _differing(texts[better], texts[worse]) < min_edit:
                continue
            yield _pair(parent, better, worse, leaves, weigh_by_gap)


def step_dpo(tree: Tree) -> Iterator[StepPair]:
    """At the first step where a right and a wrong solution part: the right one's step over the wrong one's (Step-DPO).

    A step is taken as right where every leaf below it is, and as wrong where none is.
    """
    leaves = leaf_values(tree)
    for parent in range(len(tree)):
        children = [n for n in tree.children(parent) if leaves.leaves[n] > 0]
        right = [n for n in children if leaves.value[n] == 1.0]
        wrong = [n for n in children if leaves.value[n] == 0.0]
        for chosen in right:
            for rejected in wrong:
                yield _pair(parent, chosen, rejected, leaves, weigh_by_gap=False)


def critical_pairs(
    tree: Tree, path: Sequence[int], p_right: Sequence[float | None], *, doubt_below: float = 0.5
) -> Iterator[StepPair]:
    """Critical steps (CSO): in a failed solution, doubted steps for which an alternative really succeeds.

    A step is doubted where a reward model (or another P(right)) is below ``doubt_below``. An alternative is another
    step drawn at the same node, kept only if a rollout through it ended right; of several the one of highest value.

    Args:
        tree: The tree of the problem.
        path: Nodes of the failed solution's steps, in order; the solution's own end must be wrong.
        p_right: For each of its steps the doubt, None = not known and not doubted.
        doubt_below: Exclusive.
    """
    leaves = leaf_values(tree)
    for node, p in zip(path, p_right, strict=True):
        if p is None or p >= doubt_below or leaves.leaves[node] == 0:
            continue
        parent = int(tree.parent[node])
        others = [n for n in tree.children(parent) if n != node and leaves.value[n] > leaves.value[node]]
        if others:
            best = max(others, key=lambda n: (leaves.value[n], -n))
            yield _pair(parent, best, node, leaves, weigh_by_gap=False)


def rstar_ppm(
    tree: Tree, texts: Sequence[str], *, gap: float = 0.5, min_edit: int = 20
) -> Iterator[StepPair]:
    """rStar-Math: at each node the two best steps that reach a right end over the two worst that reach a wrong one.

    Args:
        tree: The tree; Q is ``value_sum / visits`` as backed up.
        texts: Text of each node's step, by node.
        gap: Least difference of Q, inclusive (.5 in train/sample_rm_data.py).
        min_edit: Least number of characters that are not shared (edit distance >= 20 there).
    """
    leaves = leaf_values(tree)
    for parent in range(len(tree)):
        children = [n for n in tree.children(parent) if tree.visits[n] > 0 and leaves.leaves[n] > 0]
        by_q = sorted(children, key=tree.mean)
        best = [n for n in reversed(by_q) if leaves.value[n] > 0]
        worst = [n for n in by_q if leaves.value[n] < 1]
        # Two of each side, up to four where the other side has one.
        for chosen in best[: 4 if len(worst) == 1 else 2]:
            for rejected in worst[: 4 if len(best) == 1 else 2]:
                far = _differing(texts[chosen], texts[rejected]) >= min_edit
                if chosen != rejected and tree.mean(chosen) - tree.mean(rejected) >= gap and far:
                    yield StepPair(
                        parent, chosen, rejected, tree.mean(chosen), tree.mean(rejected),
                        int(leaves.leaves[chosen]), int(leaves.leaves[rejected]),
                    )  # fmt: skip


def _pair(parent: int, chosen: int, rejected: int, leaves: LeafValues, weigh_by_gap: bool) -> StepPair:
    a, b = float(leaves.value[chosen]), float(leaves.value[rejected])
    weight = a - b if weigh_by_gap else 1.0
    return StepPair(
        parent, chosen, rejected, a, b, int(leaves.leaves[chosen]), int(leaves.leaves[rejected]), weight
    )


def _differing(a: str, b: str) -> int:
    """Characters that an edit script touches: insertions, deletions, and the longer side of a replacement."""
    return sum(
        max(i2 - i1, j2 - j1)
        for kind, i1, i2, j1, j2 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
        if kind != "equal"
    )
