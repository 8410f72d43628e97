"""Programs in a model's text: fenced cells, what the text says they print, and the unit tests of a problem.

Everything here reads text line by line and runs nothing; what a cell means is decided in the sandbox.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from stepward.prm.errors import InputError
from stepward.prm.types import CheckKind, Problem

_CODE_TAGS = frozenset({"python", "py", "python3", "python 3", "ipython", "tool_code"})
_OUTPUT_TAGS = frozenset({"output", "stdout", "console", "text", "result", "out", "tool_outputs"})
_FENCE = re.compile(r"^[ \t]{0,8}(`{3,}|~{3,})[ \t]*([^`\n]{0,40})$")
_BRACKET = re.compile(r"\[(?:Code )?[Oo]utput:[ \t]*([^\[\]\n]{1,2000})\]")
_OUTPUT_LINE = re.compile(
    r"^[ \t>*_]{0,8}(?:The )?[Oo]utput(?: is)?:[*_ \t]{0,4}`?([^`\n]{1,500}?)`?[ \t*_]{0,4}$"
)
_PRINT_COMMENT = re.compile(
    r"^print\(.*\)[ \t]*#[ \t]*"
    r"(?:(?:[Oo]utputs?|[Pp]rints|[Ee]xpected(?: output)?)[ \t]*:?|[=-]>|➜|→)[ \t]*(\S.{0,300})$"
)
_PRINT_NUMBER = re.compile(r"^print\(.*\)[ \t]*#[ \t]*(-?\d[\d,]*(?:\.\d+)?|True|False|\[[^\]]*\])[ \t]*$")
_RAW_START = re.compile(r"^(?:[ \t]+\S|def |class |import |from \w|@\w|async def )")
_DOCSTRING_END = re.compile(r"\n[ \t]+[ru]?('''|\"\"\")")


@dataclass(frozen=True, slots=True)
class OutputClaim:
    """What a text says that a cell prints.

    Attributes:
        text: The claimed output.
        span: Character span of it in the step.
        line: Line of the cell (from 1) whose own output is meant, or None for all that the cell prints.
    """

    text: str
    span: tuple[int, int]
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of Python in a step.

    Attributes:
        step: Index of the step.
        source: The code.
        span: Its character span in the step.
        claims: What the text says that it prints.
        closed: False where the fence around it is not closed: the text was cut off.
    """

    step: int
    source: str
    span: tuple[int, int]
    claims: tuple[OutputClaim, ...] = ()
    closed: bool = True


@dataclass(frozen=True, slots=True)
class UnitTests:
    """The tests of a problem.

    Attributes:
        tests: Python source: assertions, or a function ``check(candidate)``.
        entry_point: The function under test; empty = whatever the tests call.
        setup: Source that runs first on both sides: imports and helpers.
        prompt: The beginning of a program that a solution completes; empty where there is none.
    """

    tests: str
    entry_point: str = ""
    setup: str = ""
    prompt: str = ""


def unit_tests_of(problem: Problem) -> UnitTests:
    """The unit tests that a problem's check carries.

    ``check.payload`` is Python source, or a JSON object with ``tests`` (or ``test``, or a list ``test_list``) and
    optionally ``entry_point``, ``prompt``, ``setup`` (or ``test_setup_code``) and ``test_imports``.

    Raises:
        InputError: The problem has no unit tests, or the object has none under a known name.
    """
    payload = problem.check.payload
    if problem.check.kind is not CheckKind.UNIT_TESTS or not payload or not payload.strip():
        raise InputError(
            f"problem {problem.id}: check.kind is {problem.check.kind} and check.payload "
            f"{'is empty' if not payload else 'is not read'}; unit tests need kind unit_tests and the tests as payload"
        )
    if not payload.lstrip().startswith("{"):
        return UnitTests(tests=payload)
    try:
        fields = cast(Mapping[str, Any], json.loads(payload))
    except ValueError:
        return UnitTests(tests=payload)  # Python may begin with a brace as well
    tests = _source(fields, "tests", "test", "test_list")
    if not tests:
        raise InputError(
            f"problem {problem.id}: check.payload has the fields {sorted(fields)}; the tests are looked for under "
            "tests, test and test_list"
        )
    setup = "\n".join(
        filter(None, (_source(fields, "test_imports"), _source(fields, "setup", "test_setup_code")))
    )
    prompt = _source(fields, "prompt")
    return UnitTests(
        tests=tests,
        entry_point=_source(fields, "entry_point").strip(),
        setup=f"{setup}\n{prompt}" if prompt else setup,
        prompt=prompt,
    )


def _source(fields: Mapping[str, Any], *names: str) -> str:
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value:
            return "\n".join(str(line) for line in cast(list[Any], value))
    return ""


def cells_of(steps: Sequence[str]) -> list[Cell]:
    """All Python cells of a solution with the outputs that its text claims for them.

    A cell is a fence tagged as Python. Its output is claimed by a fence tagged as output right after it, by
    ``[Code output: ...]``, by a line ``Output: ...``, or by a comment behind a ``print`` of the cell itself.
    """
    cells: list[Cell] = []
    for index, step in enumerate(steps):
        cells.extend(_cells_of_step(index, step))
    return cells


def _cells_of_step(index: int, step: str) -> list[Cell]:
    cells: list[Cell] = []
    fence, tag, opened, body = "", "", 0, 0
    place = 0
    for line in step.splitlines(keepends=True):
        start, place = place, place + len(line)
        mark = _FENCE.match(line.rstrip("\r\n"))
        if not fence:
            if mark:
                fence, tag, opened, body = mark[1], mark[2].strip().lower(), start, place
            else:
                _claim_in_prose(cells, line, start)
        elif mark and not mark[2].strip() and mark[1].startswith(fence):
            _end_fence(cells, index, step, tag, (opened, body, start))
            fence = ""
    if fence and tag in _CODE_TAGS:
        cells.append(Cell(index, step[body:], (body, len(step)), closed=False))
    return cells


def _end_fence(cells: list[Cell], index: int, step: str, tag: str, places: tuple[int, int, int]) -> None:
    _, body, end = places
    text = step[body:end]
    if tag in _CODE_TAGS:
        cells.append(Cell(index, text, (body, end), _claims_in_comments(text, body)))
    elif tag in _OUTPUT_TAGS and cells:
        _add_claim(cells, OutputClaim(text.strip("\n"), (body, end)))


def _claim_in_prose(cells: list[Cell], line: str, start: int) -> None:
    if not cells:
        return
    for pattern in (_BRACKET, _OUTPUT_LINE):
        found = pattern.search(line.rstrip("\r\n"))
        if found:
            _add_claim(cells, OutputClaim(found[1].strip(), (start + found.start(1), start + found.end(1))))
            return


def _add_claim(cells: list[Cell], claim: OutputClaim) -> None:
    last = cells[-1]
    if any(c.line is None for c in last.claims):
        return  # a second one belongs to something else
    cells[-1] = Cell(last.step, last.source, last.span, (*last.claims, claim), last.closed)


def _claims_in_comments(source: str, offset: int) -> tuple[OutputClaim, ...]:
    claims: list[OutputClaim] = []
    place = 0
    for number, line in enumerate(source.splitlines(keepends=True), start=1):
        text = line.rstrip()
        found = len(text) < 2000 and (_PRINT_NUMBER.match(text) or _PRINT_COMMENT.match(text))
        if found:
            span = (offset + place + found.start(1), offset + place + found.end(1))
            claims.append(OutputClaim(found[1].strip(), span, number))
        place += len(line)
    return tuple(claims)


def program_of(text: str, tests: UnitTests) -> tuple[str, bool] | None:
    """The program that a solution's text hands in.

    The last closed cell that defines the entry point; without one all closed cells in order; without cells the
    text itself where it begins like a program, completing the prompt where it is indented.

    Returns:
        Source and whether it is complete (False: its fence is not closed), or None where there is no code.
    """
    cells = cells_of([text]) or _untagged_cells(text)
    if cells:
        whole = [cell for cell in cells if cell.closed]
        if tests.entry_point:
            definition = re.compile(rf"^(?:async )?def {re.escape(tests.entry_point)}\b", re.MULTILINE)
            defining = [cell for cell in whole if definition.search(cell.source)]
            if defining:
                return defining[-1].source, True
        if not cells[-1].closed:
            return cells[-1].source, False
        return _completed("\n".join(cell.source for cell in whole), tests), True
    if not _RAW_START.match(_first_code_line(text)):
        return None
    return _completed(text, tests), True


def _first_code_line(source: str) -> str:
    """The first line that is neither blank nor a comment; empty where there is none."""
    lines = source.splitlines()
    return next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")


def _untagged_cells(text: str) -> list[Cell]:
    """Cells of fences without a language, where no fence has one."""
    return _cells_of_step(0, re.sub(r"^([ \t]{0,8}```)[ \t]*$", _Tagging(), text, flags=re.MULTILINE))


class _Tagging:
    """Tags every other bare fence, the opening ones, as Python."""

    def __init__(self) -> None:
        self._inside = False

    def __call__(self, found: "re.Match[str]") -> str:
        self._inside = not self._inside
        return f"{found[1]}python" if self._inside else found[0]


def _completed(source: str, tests: UnitTests) -> str:
    """A function body behind the prompt that it completes; other source as it is."""
    first = _first_code_line(source)
    if not tests.prompt or not first[:1].isspace():
        return source
    return without_docstring(tests.prompt) + source


def without_docstring(prompt: str) -> str:
    """A prompt without the docstring that ends it: a completion need not be indented as deeply as that is."""
    ends = prompt.rstrip()
    for quotes in ('"""', "'''"):
        if ends.endswith(quotes):
            opening = [m for m in _DOCSTRING_END.finditer(ends, 0, len(ends) - 3) if m[1] == quotes]
            if opening:
                return ends[: opening[-1].start()] + "\n"
    return prompt
