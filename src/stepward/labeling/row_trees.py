"""Stored rows -> the tree that they were drawn from: solutions and rollouts of one problem, cut into steps.

No model and no tokenizer are needed: a node's ids are the bytes of its step's text, so that steps with the same text
at the same node are one node. A rollout's first step is a sibling of the step that the solution took there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepward.labeling.tree import ROOT, Tree
from stepward.prm.steps import StepFormat
from stepward.prm.types import LabeledSolution, Outcome, Rollout


@dataclass(frozen=True, slots=True)
class RowTree:
    """The tree of one problem's rows.

    Attributes:
        tree: Nodes are steps; every graded solution and rollout is counted at its last one.
        texts: Text of each node's step, by node; the root's is empty.
        paths: For each solution, in the order of the rows, the nodes of its steps.
        episodes: For every graded solution and rollout the nodes of its steps from the root, and its outcome.
    """

    tree: Tree
    texts: list[str]
    paths: list[list[int]]
    episodes: list[tuple[list[int], Outcome]]


def tree_of(
    rows: Sequence[LabeledSolution], rollouts: Iterable[tuple[str, Rollout]], step_format: StepFormat
) -> RowTree:
    """Build the tree of one problem.

    Args:
        rows: Its solutions.
        rollouts: (solution id, rollout) of its draws; those of a solution itself count once.
        step_format: How the solutions were cut.
    """
    problem_id = rows[0].problem.id if rows else ""
    grown = RowTree(Tree(problem_id, ()), [""], [], [])
    number = 0
    by_id: dict[str, tuple[LabeledSolution, list[int]]] = {}
    for row in rows:
        number += 1
        path = _walk(grown, ROOT, [s.text for s in row.solution.steps], number)
        grown.paths.append(path)
        by_id[row.solution.id] = (row, path)
        _count(grown, path, row.solution.outcome)
    for solution_id, rollout in rollouts:
        known = by_id.get(solution_id)
        if known is None or (rollout.token_ids == () and not rollout.text.strip()):
            continue
        row, path = known
        if (
            rollout.num_steps == 0
            and rollout.seed == row.solution.seed
            and row.solution.ids_from == "sampled"
        ):
            continue  # the solution itself
        number += 1
        before = path[: rollout.num_steps]
        pieces = [p.text for p in step_format.split(rollout.text) if p.text.strip()]
        node = before[-1] if before else ROOT
        _count(grown, [*before, *_walk(grown, node, pieces, number)], rollout.outcome)
    return grown


def _walk(grown: RowTree, node: int, steps: Sequence[str], seed: int) -> list[int]:
    path: list[int] = []
    for text in steps:
        node, is_new = grown.tree.add_child(node, tuple(text.strip().encode()) or (10,), seed=seed)
        if is_new:
            grown.texts.append(text.strip())
        path.append(node)
    return path


def _count(grown: RowTree, path: list[int], outcome: Outcome | None) -> None:
    if not path:
        return
    grown.tree.add_outcome(path[-1], outcome or Outcome.ERROR)
    grown.episodes.append((path, outcome or Outcome.ERROR))
