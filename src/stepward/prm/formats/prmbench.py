"""PRMBench, read: the modified process with its wrong steps (``error_steps``, counted from 1).

Song et al. 2025, arXiv 2501.03124. Every step has a label. Rows that list an error behind the end of their
process are rejected: what they mark is not there.
"""

from stepward.prm.errors import FormatError
from stepward.prm.formats.foreign import Row, contract_row, foreign_problem, items, texts
from stepward.prm.formats.registry import Format
from stepward.prm.types import LabeledSolution


def read(row: Row, source: str) -> list[LabeledSolution]:
    """One solution. The id is not the row's: ``classification`` and ``idx`` together occur twice in five cases."""
    steps = texts(row.get("modified_process"), "modified_process")
    wrong: set[int] = set()
    for mark in items(row.get("error_steps"), "error_steps"):
        if not isinstance(mark, int) or isinstance(mark, bool) or not 1 <= mark <= len(steps):
            raise FormatError(
                f"error_steps holds {mark!r}; numbers from 1 to {len(steps)}, the steps that there are, are wanted"
            )
        wrong.add(mark - 1)
    reason = row.get("reason")
    return [
        contract_row(
            foreign_problem(row.get("modified_question"), source=source),
            steps,
            [int(at not in wrong) for at in range(len(steps))],
            rationales=[reason if at == min(wrong, default=-1) and isinstance(reason, str) else None
                        for at in range(len(steps))],
            labeler="human",
            decided_by="human",
        )
    ]  # fmt: skip


PRMBENCH = Format("prmbench", "PRMBench's modified processes, every step labelled", read)
