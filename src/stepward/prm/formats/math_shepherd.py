"""Math-Shepherd's text: ``{input, label, task}``, each step closed by " ки", in ``label`` by " +" or " -".

Wang et al. 2024, arXiv 2312.08935. Nothing but right or wrong can be said: a row is cut before its first unknown
label. A text that holds the mark itself cannot be written.
"""

from stepward.prm.errors import FormatError
from stepward.prm.formats.foreign import Row, contract_row, foreign_problem
from stepward.prm.formats.numbered import split_problem, with_heads, without_heads
from stepward.prm.formats.registry import Format, row_by_row
from stepward.prm.types import LabeledSolution

MARK = "ки"
_SIGNS = {"+": 1, "-": 0}


def read(row: Row, source: str) -> list[LabeledSolution]:
    """One solution; ``input`` and ``label`` must be the same text but for the marks."""
    marked, signed = row.get("input"), row.get("label")
    if not isinstance(marked, str) or not isinstance(signed, str):
        raise FormatError("input and label must be texts")
    pieces = marked.replace("\r\n", "\n").split(MARK)
    if pieces[-1].strip():
        raise FormatError(f"the text goes on after the last mark {MARK!r}: {pieces[-1][:40]!r}")
    labels = _signs(pieces[:-1], signed.replace("\r\n", "\n"))
    problem, first = split_problem(pieces[0])
    steps = [piece.strip() for piece in [first, *pieces[1:-1]]]
    return [
        contract_row(
            foreign_problem(problem, source=source),
            without_heads(steps),
            labels,
            labeler="math_shepherd",
            decided_by="returns",
        )
    ]


def _signs(pieces: list[str], signed: str) -> list[int | None]:
    labels: list[int | None] = []
    place = 0
    for at, piece in enumerate(pieces):
        if not signed.startswith(piece, place):
            raise FormatError(f"input and label differ within step {at}")
        place += len(piece)
        sign = signed[place : place + 1]
        if sign not in _SIGNS:
            raise FormatError(f"the label of step {at} is {sign!r}; + or - is wanted")
        labels.append(_SIGNS[sign])
        place += 1
    if signed[place:].strip():
        raise FormatError(f"label has more text than input: {signed[place : place + 40]!r}")
    return labels


def _write(solution: LabeledSolution) -> Row | str:
    steps = [step.text for step in solution.solution.steps]
    if any(MARK in text for text in (solution.problem.text, *steps)):
        return f"the text holds the mark {MARK!r} itself"
    if " Step 1:" in f" {solution.problem.text}":
        return "the problem holds 'Step 1:' itself"
    heads = with_heads(steps)
    signs = ["+" if label.label == 1 else "-" for label in solution.labels]
    text = solution.problem.text.rstrip()
    return {
        "input": f"{text} " + "\n".join(f"{head} {MARK}" for head in heads),
        "label": f"{text} " + "\n".join(f"{h} {sign}" for h, sign in zip(heads, signs, strict=True)),
        "task": solution.problem.source,
    }


MATH_SHEPHERD = Format(
    "math_shepherd",
    "Math-Shepherd's text with the mark ки, + and -",
    read,
    row_by_row(_write, cut_at_unknown=True),
    frozenset({"label"}),
)
