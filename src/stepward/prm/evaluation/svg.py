"""Plots as inline SVG: no script, no font, no file beside the page. Every text goes through ``escape``.

Colours come from CSS variables of the page, so that plots follow its light and dark scheme; the eight series
colours are Okabe and Ito's, which stay apart for colour-blind readers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from stepward.prm.evaluation.intervals import Measure

NUM_COLOURS = 8
MOST_LINES = 2 * NUM_COLOURS
"""Lines of one plot: the second eight are dashed, with hollow points."""
_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 44
_MOST_LABEL = 300


@dataclass(frozen=True, slots=True)
class Series:
    """A line: points (x, measure) by rising x."""

    name: str
    points: tuple[tuple[float, Measure], ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """A linear or base-2 logarithmic map from values to pixels."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """Pixel of a value."""
        low, high, value = (math.log2(v) if self.logarithmic else v for v in (self.low, self.high, value))
        share = 0.5 if high == low else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)


def _ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round values that cover [low, high]."""
    span = high - low or 1.0
    step = 10 ** math.floor(math.log10(span / count))
    step *= next((m for m in (1, 2, 2.5, 5, 10) if span / (step * m) <= count), 10)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:g}"


def _text(x: float, y: float, words: str, anchor: str = "middle", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(words)}</text>'


def _frame(title: str, body: list[str], width: int, height: int) -> str:
    return (
        f'<svg role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'aria-label="{escape(title, quote=True)}"><title>{escape(title)}</title>{"".join(body)}</svg>'
    )


def _grid(
    x: _Axis, y: _Axis, xs: Sequence[float], ys: Sequence[float], x_name: str, y_name: str
) -> list[str]:
    body = [
        f'<line class="grid" x1="{x.start}" x2="{x.end}" y1="{y.place(v):.1f}" y2="{y.place(v):.1f}"/>'
        + _text(x.start - 6, y.place(v) + 4, _number(v), "end")
        for v in ys
    ]
    body += [_text(x.place(v), y.start + 16, _number(v)) for v in xs]
    body.append(f'<line class="axis" x1="{x.start}" x2="{x.end}" y1="{y.start}" y2="{y.start}"/>')
    body.append(_text((x.start + x.end) / 2, y.start + 34, x_name, kind="name"))
    middle = (y.start + y.end) / 2
    body.append(
        f'<text x="14" y="{middle:.1f}" text-anchor="middle" class="name" '
        f'transform="rotate(-90 14 {middle:.1f})">{escape(y_name)}</text>'
    )
    return body


def line_chart(
    series: Sequence[Series], *, title: str, x_name: str, y_name: str, logarithmic: bool = True
) -> str:
    """Lines and a legend below; up to four lines carry their intervals as bands (more would hide each other).

    Args:
        series: At most ``MOST_LINES``; more are refused.
        title: For readers that hear the page.
        x_name: Name and unit of x.
        y_name: Name of y.
        logarithmic: Base-2 logarithm of x.

    Raises:
        ValueError: More series than can be told apart, or no point at all.
    """
    points = [(x, m) for s in series for x, m in s.points if m.value is not None]
    if len(series) > MOST_LINES or not points:
        raise ValueError(
            f"{len(series)} series with {len(points)} points: 1 to {MOST_LINES} series with points"
        )
    ends = [v for _, m in points for v in (m.value, m.low, m.high) if v is not None]
    low, high = min(ends), max(ends)
    pad = 0.05 * (high - low) or 0.05
    rows = math.ceil(len(series) / 2)
    height = _HEIGHT + 20 * rows
    y = _Axis(low - pad, high + pad, _HEIGHT - _BOTTOM, _TOP)
    xs = sorted({x for x, _ in points})
    x = _Axis(xs[0], xs[-1], _LEFT, _WIDTH - _RIGHT, logarithmic)
    shown = _spread(xs, x) if logarithmic else _ticks(xs[0], xs[-1])
    body = _grid(x, y, shown, _ticks(y.low, y.high), x_name, y_name)
    for k, line in enumerate(series):
        body += _line(line, k, x, y, banded=len(series) <= 4)
    for k, line in enumerate(series):
        left, top = _LEFT + (k % 2) * 290, _HEIGHT + 8 + 20 * (k // 2)
        body.append(f'<line class="line {_look(k)}" x1="{left}" x2="{left + 18}" y1="{top}" y2="{top}"/>')
        body.append(_text(left + 24, top + 4, line.name, "start"))
    return _frame(title, body, _WIDTH, height)


def _look(k: int) -> str:
    """Classes of the k-th line."""
    return f"c{k % NUM_COLOURS}" + (" second" if k >= NUM_COLOURS else "")


def _spread(xs: Sequence[float], axis: _Axis) -> list[float]:
    """Of the given values those whose labels do not touch."""
    kept: list[float] = []
    for value in xs:
        if not kept or axis.place(value) - axis.place(kept[-1]) >= 44:
            kept.append(value)
    return kept


def _line(line: Series, k: int, x: _Axis, y: _Axis, *, banded: bool = True) -> list[str]:
    points = [(x.place(a), m) for a, m in line.points if m.value is not None]
    ends = [(a, m.low, m.high) for a, m in points if m.low is not None and m.high is not None]
    body: list[str] = []
    if banded and len(ends) > 1:
        upper = " ".join(f"{a:.1f},{y.place(high):.1f}" for a, _, high in ends)
        lower = " ".join(f"{a:.1f},{y.place(low):.1f}" for a, low, _ in reversed(ends))
        body.append(f'<polygon class="band c{k}" points="{upper} {lower}"/>')
    path = " ".join(f"{a:.1f},{y.place(m.value or 0.0):.1f}" for a, m in points)
    body.append(f'<polyline class="line {_look(k)}" points="{path}"/>')
    body += [
        f'<circle class="dot {_look(k)}" cx="{a:.1f}" cy="{y.place(m.value or 0.0):.1f}" r="3">'
        f"<title>{escape(f'{line.name}: {m}')}</title></circle>"
        for a, m in points
    ]
    return body


def interval_chart(
    groups: Sequence[tuple[str, Sequence[tuple[str, Measure]]]],
    *,
    title: str,
    x_name: str,
    low: float | None = 0.0,
    high: float | None = 1.0,
    coloured: bool = True,
) -> str:
    """Points with intervals, one row each, in groups; a zero line where zero is inside.

    Args:
        groups: Group name and its rows (row name, measure); an undefined measure says so in words.
        title: For readers that hear the page.
        x_name: Name of the quantity.
        low: Left end of the axis, or None for the data's.
        high: Right end, or None for the data's.
        coloured: A colour for each row of a group, where rows are the same things in every group; left out where a
            group has more rows than there are colours, since a colour that comes twice says something wrong.
    """
    coloured = coloured and all(len(rows) <= NUM_COLOURS for _, rows in groups)
    values = [
        v for _, rows in groups for _, m in rows for v in (m.value, m.low, m.high) if v is not None
    ] or [0.0, 1.0]
    low = min(*values, 0.0) if low is None else low
    high = max(*values, 0.0) if high is None else high
    longest = max((len(name) for _, rows in groups for name, _ in rows), default=0)
    left, row_height = min(max(24 + round(6.5 * longest), 120), _MOST_LABEL), 20
    x = _Axis(low, high, left, _WIDTH - 20)
    body: list[str] = []
    top = 8.0
    for name, rows in groups:
        if name:
            body.append(_text(4, top + 13, name, "start", "group"))
            top += row_height
        for k, (row_name, m) in enumerate(rows):
            body += _interval_row(row_name, m, k if coloured else 0, x, top + row_height / 2)
            top += row_height
        top += 6
    y = _Axis(0, 1, top, 8)
    lines = [
        f'<line class="grid" x1="{x.place(v):.1f}" x2="{x.place(v):.1f}" y1="8" y2="{y.start}"/>'
        + _text(x.place(v), y.start + 16, _number(v))
        for v in _ticks(low, high)
    ]
    if low < 0 < high:
        zero = x.place(0)
        lines.append(f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="8" y2="{y.start}"/>')
    lines.append(_text((x.start + x.end) / 2, y.start + 34, x_name, kind="name"))
    return _frame(title, lines + body, _WIDTH, int(top + 44))


def _interval_row(name: str, m: Measure, k: int, x: _Axis, y: float) -> list[str]:
    most = int((_MOST_LABEL - 24) / 6.5)
    body = [_text(x.start - 10, y + 4, name if len(name) <= most else name[: most - 1] + "…", "end")]
    if m.value is None:
        body.append(_text(x.start + 4, y + 4, f"undefined: {m.note}", "start", "muted"))
        return body
    if m.low is not None and m.high is not None:
        body.append(
            f'<line class="line c{k}" x1="{x.place(m.low):.1f}" x2="{x.place(m.high):.1f}" y1="{y}" y2="{y}"/>'
        )
    body.append(
        f'<circle class="dot c{k}" cx="{x.place(m.value):.1f}" cy="{y}" r="4.5">'
        f"<title>{escape(f'{name}: {m}')}</title></circle>"
    )
    return body


def reliability_chart(bins: Sequence[tuple[float, Measure]], *, title: str) -> str:
    """Share of right steps against mean score, with the diagonal of perfect calibration.

    Args:
        bins: Mean score and share right of each bin.
        title: For readers that hear the page.
    """
    size = _HEIGHT
    x, y = _Axis(0, 1, _LEFT, size - _RIGHT), _Axis(0, 1, size - _BOTTOM, _TOP)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    body = _grid(x, y, ticks, ticks, "mean score", "share of right steps")
    body.append(f'<line class="diagonal" x1="{x.start}" y1="{y.start}" x2="{x.end}" y2="{y.end}"/>')
    for score, m in bins:
        if m.low is not None and m.high is not None:
            a = x.place(score)
            body.append(
                f'<line class="thin c0" x1="{a:.1f}" x2="{a:.1f}" y1="{y.place(m.low):.1f}" '
                f'y2="{y.place(m.high):.1f}"/>'
            )
    body += _line(Series("bins", tuple((s, Measure(m.value, n=m.n)) for s, m in bins)), 0, x, y)
    return _frame(title, body, size, size)
