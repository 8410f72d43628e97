r"""Claims of derivatives and integrals, read out of a step's text; workers decide them.

``\frac{d}{dx}(x^3) = 3x^2``, ``f(x) = x^3`` and then ``f'(x) = 3x^2``, ``\int x^2 dx = x^3/3 + C``,
``\int_0^1 x dx = 1/2``.
"""

import re
from dataclasses import dataclass

from stepward.verifiers.answers.expressions import Apply, Expression, Symbol, Unreadable, symbols, walk
from stepward.verifiers.claims.exact import parse
from stepward.verifiers.claims.reading import not_stated

MAX_QUESTIONS = 6
_END = (
    r"(?=\s*(?:\\\]|\\\)|\$|\n|\\\\|[,;]\s|\.(?!\d)|=|≈|\\approx|"
    r"\\quad|\\text|\\end|\\Rightarrow|\\implies|$| (?:and|so|which|is|at|for|where)\b))"
)
_BY = re.compile(
    r"\\[dt]?frac\{d\}\{d([a-zA-Z])\}\s*(?:\\left\s*)?([(\[])(.{1,200}?)(?:\\right\s*)?[)\]]\s*=\s*(.{1,200}?)"
    + _END
)
_DEFINED = re.compile(r"(?<![a-zA-Z\\'])([fghFGPpyQq])\s*\(\s*([a-zA-Z])\s*\)\s*=\s*(.{1,200}?)" + _END)
_PRIME = re.compile(
    r"(?<![a-zA-Z\\])([fghFGPpyQq])('|^\{\\prime\})\s*\(\s*([a-zA-Z])\s*\)\s*=\s*(.{1,200}?)" + _END
)
_INTEGRAL = re.compile(
    r"\\int\s*(?:_\s*(?:\{([^{}]{1,30})\}|(\w))\s*\^\s*(?:\{([^{}]{1,30})\}|(\w)))?\s*(.{1,200}?)\s*(?:\\[,;:! ]\s*)*"
    r"(?:\\mathrm\{d\}|d)([a-z])\s*=\s*(.{1,200}?)" + _END
)
_APPLIED = re.compile(
    r"[a-zA-Z]'|[fghFGPQ]\s*(?:\^\{?\d\}?)?\s*(?:\\left)?\(|\\int|\\sum|\\lim|_|\bd[a-z]\b|!|\|"
)


@dataclass(frozen=True, slots=True)
class Question:
    """A claim that a worker decides.

    Attributes:
        function: Of ``stepward.verifiers.claims.symbolic``.
        arguments: Its arguments.
        start: First character of the claim in the step.
        end: Character behind its last.
        doubt: Why it may not be stated as a fact.
    """

    function: str
    arguments: tuple[str | list[str], ...]
    start: int
    end: int
    doubt: str


def questions_of(text: str, before: str = "") -> list[Question]:
    """Claims of derivatives and integrals in a step.

    Args:
        text: The step.
        before: The steps before it, whose definitions of functions count.
    """
    found: list[Question] = []
    for match in _BY.finditer(text):
        name, _, body, stated = match.groups()
        _ask(found, "derivative", (_clean(body), name, _clean(stated)), match, text)
    for match in _PRIME.finditer(text):
        function, _, name, stated = match.groups()
        bodies = [
            m[3]
            for m in _DEFINED.finditer(before + "\n" + text[: match.start()])
            if m[1] == function and m[2] == name
        ]
        if len(set(map(_clean, bodies))) == 1:
            _ask(found, "derivative", (_clean(bodies[0]), name, _clean(stated)), match, text)
    for match in _INTEGRAL.finditer(text):
        low, low_digit, high, high_digit, body, name, stated = match.groups()
        a, b = low or low_digit, high or high_digit
        stated = _clean(stated)
        if a and b:
            _ask(found, "definite", (_clean(body), name, _clean(a), _clean(b), stated), match, text)
        elif "+ C" in stated or "+C" in stated:
            _ask(
                found, "antiderivative", (_clean(body), name, re.sub(r"\+\s*C\b.*", "", stated)), match, text
            )
    return found[:MAX_QUESTIONS]


def _clean(text: str) -> str:
    return re.sub(r"\\left|\\right|\\[,;!:]|\\displaystyle|\\boxed", " ", text).strip()


def _ask(
    found: list[Question], function: str, arguments: tuple[str, ...], match: re.Match[str], text: str
) -> None:
    texts = [a for a in arguments if len(a) > 1]
    if any(_APPLIED.search(a) for a in texts):
        return
    try:
        trees = [parse(a, functions=True) for a in arguments]
    except Unreadable:
        return
    if (
        function == "derivative"
        and not symbols(trees[-1])
        and symbols(trees[0])
        and not isinstance(trees[0], Symbol)
    ):
        return  # "f'(x) = 0" is an equation to be solved.
    if any(_unfit(node) for node in trees):
        return
    doubt = not_stated(text, match.start(), match.end())
    found.append(Question(function, arguments, match.start(), match.end(), doubt))


def _unfit(node: Expression) -> bool:
    """Whether a part has no certain meaning: degrees, the letter i, logarithms without a base."""
    return any(
        (isinstance(n, Apply) and n.function in ("degree", "percent", "log", "pm", "mp", "mod", "abs"))
        or (isinstance(n, Symbol) and n.name == "i")
        for n in walk(node)
    )
