"""Counts for a Beta-binomial loss (BetaPRM): how many of how many rollouts were right after each step.

``{question, answer, steps, k, n}``: draws without a verdict are in neither count, so a step may have n = 0.
"""

from stepward.prm.errors import FormatError
from stepward.prm.formats.foreign import Row, contract_row, foreign_problem, items, texts
from stepward.prm.formats.registry import Format, row_by_row
from stepward.prm.types import Counts, LabeledSolution


def read(row: Row, source: str) -> list[LabeledSolution]:
    """One solution with counts and no labels (``relabel`` derives them)."""
    steps = texts(row.get("steps"), "steps")
    answer = row.get("answer")
    counts = [Counts()] + [
        _counts(k, n, at)
        for at, (k, n) in enumerate(zip(items(row.get("k"), "k"), items(row.get("n"), "n"), strict=False))
    ]
    if len(items(row.get("k"), "k")) != len(steps) or len(items(row.get("n"), "n")) != len(steps):
        raise FormatError(
            f"{len(row['k'])} k and {len(row['n'])} n for {len(steps)} steps; one each a step is wanted"
        )
    return [
        contract_row(
            foreign_problem(
                row.get("question"), source=source, answers=[answer] if isinstance(answer, str) else []
            ),
            steps,
            [None] * len(steps),
            counts=counts,
            labeler="betaprm",
            decided_by="",
        )
    ]


def _counts(k: object, n: object, at: int) -> Counts:
    whole = isinstance(k, int) and isinstance(n, int) and not isinstance(k, bool) and not isinstance(n, bool)
    if not whole or not 0 <= k <= n:  # pyright: ignore[reportOperatorIssue]
        raise FormatError(f"step {at}: k = {k!r} of n = {n!r}; whole numbers with 0 <= k <= n are wanted")
    return Counts(right=int(k), wrong=int(n) - int(k))  # pyright: ignore[reportArgumentType]


def _write(solution: LabeledSolution) -> Row | str:
    if not any(e.counts.decided for e in solution.prefixes[1:]):
        return "no rollouts were counted after any step"
    return {
        "question": solution.problem.text,
        "answer": solution.problem.answers[0] if solution.problem.answers else None,
        "steps": [step.text for step in solution.solution.steps],
        "k": [e.counts.right for e in solution.prefixes[1:]],
        "n": [e.counts.decided for e in solution.prefixes[1:]],
    }


BETAPRM = Format(
    "betaprm",
    "counts {question, answer, steps, k, n} for a Beta-binomial loss; truncated draws and faults are left out",
    read,
    row_by_row(_write),
    frozenset(),
)
