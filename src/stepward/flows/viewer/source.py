"""What the viewer's server asks of a folder, whatever kind it is: a dataset or evaluation results."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One choice of a filter."""

    value: str
    label: str


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that the page offers as a menu; the empty choice is no filter."""

    name: str
    label: str
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Query:
    """What to list.

    Attributes:
        offset: Rows to leave out.
        limit: Most rows.
        sort: Name of a sort; empty = the folder's own order.
        search: Rows whose problem has this text, without regard to case; empty = all.
        problem: Rows of this problem id only; empty = all.
        filters: Chosen option by filter name.
    """

    offset: int = 0
    limit: int = 50
    sort: str = ""
    search: str = ""
    problem: str = ""
    filters: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def takes_all(self) -> bool:
        """True where no row is left out and the order is the folder's: nothing has to be looked at."""
        return not (self.sort or self.search or self.problem or any(self.filters.values()))


class Source(Protocol):
    """A folder that can be browsed."""

    @property
    def name(self) -> str:
        """Name on the page."""
        ...

    def describe(self) -> Json:
        """``{kind, name, count, filters, sorts, facts}``."""
        ...

    def warm(self) -> None:
        """Prepare what filters and sorts need."""
        ...

    def page(self, query: Query) -> Json:
        """``{total, rows}``; a row has ``id``, ``problem_id``, ``snippet``, ``badges`` and ``strip`` (values)."""
        ...

    def solution(self, solution_id: str) -> Json | None:
        """All of one row, or None where there is no such id."""
        ...

    def rollouts(self, solution_id: str, prefix: int) -> list[Json]:
        """The rollouts drawn at a prefix."""
        ...

    def problem(self, problem_id: str) -> Json:
        """The problem's solutions as step texts and values, for the tree."""
        ...


def clean(value: Any) -> Any:
    """JSON values without NaN and infinities: both become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    return value


def shorten(text: str, length: int = 140) -> str:
    """One line of at most ``length`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"
