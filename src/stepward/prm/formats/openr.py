"""OpenR's MATH-APS: Monte Carlo values of prefixes, flat or as a tree. Solutions of one problem are one row.

Flat: ``{question, final_answer, reasoning_steps: [{solution_prefix, mc_value}]}``, where a prefix is the question
and its steps joined by blank lines. Tree: ``{question, final_answer, reasoning_steps: {text, mc_value, children}}``.
Each path to a leaf is a solution. Values survive, labels do not: the format has none.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepward.prm.errors import FormatError
from stepward.prm.formats.foreign import Row, an_object, contract_row, foreign_problem, items, share
from stepward.prm.formats.registry import Format, Written
from stepward.prm.types import LabeledSolution, Problem

SEPARATOR = "\n\n"
MAX_DEPTH = 500
"""A tree deeper than this is refused: no solution has as many steps, and a made one would end the process."""


@dataclass(slots=True)
class _Node:
    text: str
    value: float | None
    children: dict[str, "_Node"] = field(default_factory=dict[str, "_Node"])


_Path = list[tuple[str, float | None]]


def read_tree(row: Row, source: str) -> list[LabeledSolution]:
    """One solution for each leaf, from left to right."""
    problem = _problem(row, source)
    root = an_object(row.get("reasoning_steps"), "reasoning_steps")
    solutions: list[LabeledSolution] = []
    pending: list[tuple[Row, _Path]] = [(root, [("", _value(root, "reasoning_steps"))])]
    while pending:
        node, path = pending.pop()
        children = [an_object(c, "a child") for c in items(node.get("children"), "children")]
        if len(path) > MAX_DEPTH:
            raise FormatError(f"the tree is deeper than {MAX_DEPTH} steps")
        if not children and len(path) > 1:
            solutions.append(_solution(problem, path))
        for child in reversed(children):
            text = child.get("text")
            if not isinstance(text, str):
                raise FormatError(f"the text of a node is {text!r:.60}")
            pending.append((child, [*path, (text.strip(), _value(child, text[:30]))]))
    return solutions


def read_flat(row: Row, source: str) -> list[LabeledSolution]:
    """One solution for each prefix that no other prefix goes on from; a prefix that occurs twice counts once."""
    problem = _problem(row, source)
    nodes = [
        an_object(n, f"reasoning_steps[{i}]")
        for i, n in enumerate(items(row.get("reasoning_steps"), "steps"))
    ]
    values: dict[str, float | None] = {}
    for at, node in enumerate(nodes):
        prefix = node.get("solution_prefix")
        if not isinstance(prefix, str) or not prefix.startswith(problem.text):
            raise FormatError(f"reasoning_steps[{at}]: a solution_prefix begins with the question")
        values.setdefault(prefix, _value(node, f"reasoning_steps[{at}]"))
    parents = {prefix: _parent(prefix, values) for prefix in values}
    inner = set(parents.values())
    root = next((p for p in values if parents[p] is None and p.strip() == problem.text.strip()), None)
    solutions: list[LabeledSolution] = []
    for leaf in values:
        if leaf in inner or leaf == root:
            continue
        path: _Path = []
        prefix: str | None = leaf
        while prefix is not None and prefix != root:
            parent = parents[prefix]
            before = problem.text if parent is None else parent
            path.append((prefix[len(before) :].strip(), values[prefix]))
            prefix = parent
        path.append(("", values[root] if root is not None else None))
        solutions.append(_solution(problem, path[::-1]))
    return solutions


def _parent(prefix: str, values: dict[str, float | None]) -> str | None:
    """The longest other prefix that this one goes on from, after a blank line."""
    cut = prefix.rfind(SEPARATOR)
    while cut >= 0:
        if prefix[:cut] in values and prefix[:cut] != prefix:
            return prefix[:cut]
        cut = prefix.rfind(SEPARATOR, 0, cut + 1) if cut > 0 else -1
    return None


def _problem(row: Row, source: str) -> Problem:
    gold = row.get("final_answer")
    return foreign_problem(
        row.get("question"), source=source, answers=[gold] if isinstance(gold, str) and gold else []
    )


def _value(node: Row, name: str) -> float | None:
    value = node.get("mc_value")
    return None if value is None else share(value, f"mc_value of {name!r}")


def _solution(problem: Problem, path: _Path) -> LabeledSolution:
    steps = [text for text, _ in path[1:]]
    return contract_row(
        problem,
        steps,
        [None] * len(steps),
        values=[value for _, value in path],
        labeler="openr",
        decided_by="",
    )


def _grown(solutions: Sequence[LabeledSolution]) -> tuple[_Node, Written]:
    """The tree of all solutions, and what it cannot hold. A node has the value that its first solution gave."""
    root = _Node(solutions[0].problem.text, solutions[0].prefixes[0].value)
    paths = {tuple(step.text for step in s.solution.steps) for s in solutions}
    inside = {path[:n] for path in paths for n in range(len(path))}
    seen: set[tuple[str, ...]] = set()
    told = Written()
    for solution in solutions:
        path = tuple(step.text for step in solution.solution.steps)
        if path in seen or path in inside:
            told.left_out["the same steps as another solution, or the beginning of them"] += 1
            continue
        seen.add(path)
        node, other_value = root, root.value != solution.prefixes[0].value
        for text, estimate in zip(path, solution.prefixes[1:], strict=True):
            node = node.children.setdefault(text, _Node(text, estimate.value))
            other_value |= node.value != estimate.value
        if other_value:
            told.cut["value, where another solution gave a shared prefix another one"] += 1
    return root, told


def write_tree(solutions: Sequence[LabeledSolution]) -> Written:
    """One tree a problem; a solution that stops where another goes on is no leaf of its own."""
    root, told = _grown(solutions)
    if not root.children:
        return told

    def as_row(node: _Node) -> Row:
        return {
            "text": node.text,
            "mc_value": node.value,
            "children": [as_row(c) for c in node.children.values()],
        }

    return Written([{**_head(solutions[0]), "reasoning_steps": as_row(root)}], told.left_out, told.cut)


def write_flat(solutions: Sequence[LabeledSolution]) -> Written:
    """All prefixes of a problem, the bare question first."""
    root, told = _grown(solutions)
    if not root.children:
        return told
    rows: list[Row] = []

    def add(node: _Node, prefix: str) -> None:
        rows.append({"solution_prefix": prefix, "mc_value": node.value})
        for child in node.children.values():
            add(child, f"{prefix}{SEPARATOR}{child.text}")

    add(root, root.text)
    row = {**_head(solutions[0]), "reasoning_steps": rows}
    if not _reads_back(row, root):
        reason = "a step with a blank line in it cannot be told from two steps"
        return Written((), Counter({reason: len(solutions)}))
    return Written([row], told.left_out, told.cut)


def _reads_back(row: Row, root: _Node) -> bool:
    def leaves(node: _Node, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        found = [leaf for c in node.children.values() for leaf in leaves(c, (*path, c.text.strip()))]
        return found or [path]

    read = [tuple(step.text for step in s.solution.steps) for s in read_flat(row, "")]
    return sorted(read) == sorted(leaves(root, ()))


def _head(solution: LabeledSolution) -> Row:
    answers = solution.problem.answers
    return {"question": solution.problem.text, "final_answer": answers[0] if answers else None}


OPENR_TREE = Format(
    "openr_tree",
    "OpenR's MATH-APS trees with Monte Carlo values",
    read_tree,
    write_tree,
    frozenset({"value"}),
)
OPENR_FLAT = Format(
    "openr", "OpenR's MATH-APS prefixes with Monte Carlo values", read_flat, write_flat, frozenset({"value"})
)
