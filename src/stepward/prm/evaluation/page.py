"""One self-contained HTML page: style inside, plots as SVG, no script, no request to anywhere.

All text is escaped; the content policy forbids scripts and requests, so that even a mistake here could not run
what a model wrote.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import cast

from stepward.prm.evaluation.intervals import Measure

Cell = str | float | int | Measure | None

_STYLE = """
:root { color-scheme: light dark; --text: #1c2024; --muted: #62676d; --ground: #fff; --panel: #f6f7f8;
  --rule: #dcdfe3; --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #b58900; --c5: #56b4e9;
  --c6: #5d5d5d; --c7: #7a4fbf; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8ea; --muted: #9aa1a9; --ground: #15181b;
  --panel: #1d2125; --rule: #343a40; --c0: #56b4e9; --c1: #f08a4b; --c2: #2dc79a; --c3: #e09cc4; --c4: #e3c04a;
  --c5: #8ecdf2; --c6: #b0b0b0; --c7: #ad8cea; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--rule); padding-bottom: .25rem; }
p { max-width: 45rem; margin: .5rem 0; }
.lead { color: var(--muted); }
.warning { border-left: 3px solid var(--c1); padding: .25rem .75rem; background: var(--panel); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .75rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--muted); padding-bottom: .25rem; }
th, td { padding: .3rem .75rem .3rem 0; text-align: left; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
th { font-weight: 600; }
td { max-width: 15rem; overflow-wrap: break-word; }
td.number, th.number { text-align: right; white-space: nowrap; }
td .interval { color: var(--muted); }
svg { max-width: 100%; height: auto; display: block; margin: .75rem 0; overflow: visible; }
svg text { fill: var(--text); font-size: 12px; }
svg text.name, svg text.muted { fill: var(--muted); }
svg text.group { font-weight: 600; paint-order: stroke; stroke: var(--ground); stroke-width: 4px; }
.grid { stroke: var(--rule); stroke-width: 1; } .axis { stroke: var(--muted); stroke-width: 1; }
.diagonal { stroke: var(--muted); stroke-dasharray: 4 4; }
.line { fill: none; stroke-width: 2; } .thin { fill: none; stroke-width: 1; } .band { opacity: .15; stroke: none; }
.line.second { stroke-dasharray: 5 3; }
""" + "".join(
    f".line.c{k}, .thin.c{k} {{ stroke: var(--c{k}); }} .dot.c{k}, .band.c{k} {{ fill: var(--c{k}); }}\n"
    f".dot.c{k}.second {{ fill: var(--ground); stroke: var(--c{k}); stroke-width: 1.5; }}\n"
    for k in range(8)
)


def page(title: str, lead: str, blocks: Sequence[str]) -> str:
    """The whole page.

    Args:
        title: Plain text.
        lead: One sentence below it, plain text.
        blocks: HTML from the functions of this file and of ``svg``.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{"".join(blocks)}</main></body></html>\n'
    )


def standalone(svg: str) -> str:
    """A plot of ``svg`` as a file of its own, for documents: the page's colours go into it."""
    style = _STYLE.split("* {")[0] + "".join(
        line for line in _STYLE.splitlines() if line.startswith(("svg", "."))
    )
    ground = '<rect width="100%" height="100%" fill="var(--ground)"/>'
    head, rest = svg.split(">", 1)
    style += "svg { font-family: sans-serif; }"
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{style}</style>{ground}{rest}\n'


def settings_table(settings: Iterable[tuple[str, object]]) -> str:
    """What a run says of itself, as words: lists joined, nothing where nothing was set."""
    return table(["what", "value"], [(str(name), _setting(value)) for name, value in settings])


def _setting(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        pairs = cast(Mapping[object, object], value).items()
        return ", ".join(f"{k} = {_setting(v) or 'none'}" for k, v in pairs)
    if isinstance(value, list | tuple):
        return ", ".join(_setting(v) or "none" for v in cast(Sequence[object], value)) or None
    return str(value)


def heading(words: str) -> str:
    """A section's heading."""
    return f"<h2>{escape(words)}</h2>"


def paragraph(words: str, *, warning: bool = False) -> str:
    """A paragraph of plain text; a warning stands out."""
    return f'<p class="warning">{escape(words)}</p>' if warning else f"<p>{escape(words)}</p>"


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, caption: str = "") -> str:
    """A table; columns that hold numbers are set right.

    Args:
        columns: Head of each column.
        rows: Cells: text, numbers, measures (value and interval, or why there is none), None (a dash).
        caption: A line above.
    """
    numeric = [any(isinstance(row[k], Measure | float | int) for row in rows) for k in range(len(columns))]
    kinds = [' class="number"' if n else "" for n in numeric]
    head = "".join(f"<th{kind}>{escape(c)}</th>" for kind, c in zip(kinds, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{_cell(c)}</td>" for kind, c in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{named}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, Measure):
        return _measure(cell)
    if isinstance(cell, float):
        return f"{cell:.4g}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return escape(cell)


def _measure(m: Measure) -> str:
    if m.value is None:
        return (
            f'<span class="interval" title="{escape(m.note, quote=True)}">undefined: {escape(m.note)}</span>'
        )
    value = f"{m.value:.3f}"
    if m.low is None or m.high is None:
        return value
    noted = f' title="{escape(m.note, quote=True)}"' if m.note else ""
    return f'{value} <span class="interval"{noted}>[{m.low:.3f}, {m.high:.3f}]</span>'
