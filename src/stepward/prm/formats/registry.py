"""All foreign formats by name, and the two doors: ``import_rows`` and ``export_rows``. Both count every row.

A format is a file of this folder with a ``Format`` in it. Reading turns one foreign row into rows of the contract
(a tree gives several); writing turns the solutions of one problem into foreign rows.
"""

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby

from stepward.prm.errors import ConfigError, FormatError
from stepward.prm.formats.fields import lost
from stepward.prm.formats.foreign import Row
from stepward.prm.records import Place
from stepward.prm.types import LabeledSolution

Reader = Callable[[Row, str], Sequence[LabeledSolution]]
"""A foreign row and the name of its source -> rows of the contract, without solution ids. Raises FormatError."""


@dataclass(frozen=True, slots=True)
class Written:
    """What writing the solutions of one problem gave.

    Attributes:
        rows: Foreign rows.
        left_out: Why solutions gave no row, by reason.
        cut: What rows lost beyond the fields that the format never holds, by name: number of rows.
    """

    rows: Sequence[Row] = ()
    left_out: Counter[str] = field(default_factory=Counter[str])
    cut: Counter[str] = field(default_factory=Counter[str])


Writer = Callable[[Sequence[LabeledSolution]], Written]


@dataclass(frozen=True, slots=True)
class Format:
    """A foreign format.

    Attributes:
        name: As the command line has it.
        about: What it is and who reads it.
        read: None where it is only written.
        write: None where it is only read.
        holds: Names of ``fields.FIELDS`` that survive a round trip.
        holds_if: Names of others that survive where what they say is something that the format can say.
    """

    name: str
    about: str
    read: Reader | None = None
    write: Writer | None = None
    holds: frozenset[str] = frozenset()
    holds_if: Mapping[str, Callable[[LabeledSolution], bool]] = field(
        default_factory=dict[str, Callable[[LabeledSolution], bool]]
    )

    def held(self, row: LabeledSolution) -> frozenset[str]:
        """Names of the fields of a row that survive a round trip."""
        return self.holds | {name for name, says in self.holds_if.items() if says(row)}


@dataclass(slots=True)
class ImportReport:
    """What came in. ``rows`` = ``kept`` + ``len(rejected)``.

    Attributes:
        rows: Foreign rows.
        kept: Foreign rows that gave solutions.
        solutions: Rows of the contract.
        rejected: Place and reason of each row that gave none.
        unknown_labels: Steps without a label.
    """

    rows: int = 0
    kept: int = 0
    solutions: int = 0
    rejected: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    unknown_labels: int = 0

    def reject(self, place: Place, why: str) -> None:
        """Name a row that gave nothing."""
        self.rejected.append((f"{place.path}:{place.number}", why))

    def unread(self, place: Place, why: str) -> None:
        """Count and name a row that could not even be read: for ``records.read_records``."""
        self.rows += 1
        self.reject(place, why)


@dataclass(slots=True)
class ExportReport:
    """What went out. ``solutions`` = ``written`` + the sum of ``left_out``.

    Attributes:
        solutions: Rows of the contract.
        written: Those that are in the foreign rows.
        rows: Foreign rows.
        left_out: Solutions by the reason why the format cannot hold them.
        lost: Solutions by the field that they lost.
    """

    solutions: int = 0
    written: int = 0
    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])
    lost: Counter[str] = field(default_factory=Counter[str])


def import_rows(
    form: Format, rows: Iterable[tuple[Place, Row]], report: ImportReport, *, source: str
) -> Iterator[LabeledSolution]:
    """Foreign rows as rows of the contract, streamed.

    Args:
        form: The format.
        rows: Rows with their places, as ``records.read_records`` gives them.
        report: Filled in while the rows stream.
        source: ``Problem.source`` of the rows, part of the ids.

    Raises:
        ConfigError: The format cannot be read. A row that breaks the format is no error but in ``rejected``.
    """
    if form.read is None:
        raise ConfigError([f"import: the format {form.name!r} is only written, not read"])
    numbers: Counter[str] = Counter()
    for place, row in rows:
        report.rows += 1
        try:
            found = form.read(row, source)
            if not found:
                raise FormatError("the row holds no solution")
        except FormatError as fault:
            report.reject(place, str(fault))
            continue
        report.kept += 1
        for solution in found:
            report.solutions += 1
            report.unknown_labels += sum(label.label is None for label in solution.labels)
            yield _numbered(solution, numbers)


def _numbered(row: LabeledSolution, numbers: Counter[str]) -> LabeledSolution:
    if row.solution.id:
        return row
    key = row.problem.id
    numbers[key] += 1
    return replace(row, solution=replace(row.solution, id=f"{key}-{numbers[key] - 1}"))


def export_rows(form: Format, rows: Iterable[LabeledSolution], report: ExportReport) -> Iterator[Row]:
    """Rows of the contract as foreign rows, streamed. Solutions of one problem must stand together.

    Args:
        form: The format.
        rows: The rows.
        report: Filled in while the rows stream.

    Raises:
        ConfigError: The format cannot be written.
    """
    if form.write is None:
        raise ConfigError([f"export: the format {form.name!r} is only read, not written"])
    for _, group in groupby(rows, key=lambda r: r.problem.id):
        solutions = list(group)
        written = form.write(solutions)
        left_out = sum(written.left_out.values())
        report.solutions += len(solutions)
        report.written += len(solutions) - left_out
        report.rows += len(written.rows)
        report.left_out += written.left_out
        report.lost += written.cut
        report.lost += Counter(name for s in solutions for name in lost(s, form.held(s)))
        yield from written.rows


@cache
def formats() -> dict[str, Format]:
    """All formats by name."""
    package = importlib.import_module("stepward.prm.formats")
    found: dict[str, Format] = {}
    for module in pkgutil.iter_modules(package.__path__):
        for value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values():
            if isinstance(value, Format):
                found[value.name] = value
    return dict(sorted(found.items()))


def format_named(name: str) -> Format:
    """The format of that name. Raises ConfigError, naming those that there are."""
    known = formats()
    if name not in known:
        raise ConfigError([f"format: {name!r} is unknown; there are {', '.join(known)}"])
    return known[name]


def row_by_row(write: Callable[[LabeledSolution], Row | str], *, cut_at_unknown: bool = False) -> Writer:
    """A writer from a function of one solution, which gives a row, or a text: why it cannot.

    Args:
        write: The function.
        cut_at_unknown: Hand it only the steps before the first unknown label (a format without null).
    """

    def write_all(solutions: Sequence[LabeledSolution]) -> Written:
        rows: list[Row] = []
        left_out: Counter[str] = Counter()
        cut: Counter[str] = Counter()
        for solution in solutions:
            short = _known_part(solution) if cut_at_unknown else solution
            if not short.labels:
                left_out["no step has a label before the first unknown one"] += 1
                continue
            row = write(short)
            if isinstance(row, str):
                left_out[row] += 1
                continue
            if len(short.labels) < len(solution.labels):
                cut["steps after the first unknown label"] += 1
            rows.append(row)
        return Written(rows, left_out, cut)

    return write_all


def _known_part(row: LabeledSolution) -> LabeledSolution:
    known = next((t for t, label in enumerate(row.labels) if label.label is None), len(row.labels))
    if known == len(row.labels):
        return row
    first = row.first_error if row.first_error is not None and row.first_error < known else None
    return replace(
        row,
        solution=replace(row.solution, steps=row.solution.steps[:known]),
        prefixes=row.prefixes[: known + 1],
        labels=row.labels[:known],
        first_error=first,
    )
