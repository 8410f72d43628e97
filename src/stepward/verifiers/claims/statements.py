r"""Statements of a step: chains such as ``x^2 = 4`` or ``a < b = c``, and whether one is drawn from another.

One statement is drawn from another where nothing stands between them but arrows, the ends of formulas and words of
derivation ("so", "simplifies to", "dividing both sides by 3"). Any other word may bring in a new condition.
"""

# ruff: noqa: SIM905  (lists of words are easiest to read as text)

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from stepward.verifiers.claims.decisions import shown
from stepward.verifiers.claims.operands import Operand
from stepward.verifiers.claims.reading import Claim, claims_of

MAX_LINK_CHARS = 400
TAIL_CHARS = 4 * MAX_LINK_CHARS
"""What is read of the end of the step before, for statements from which a step goes on."""


# What is denied has no consequences, unlike what is supposed.
_DENIES = re.compile(r"'(?:not|cannot|can't|isn't|doesn't|don't|never|impossible|fail\w*|invalid)'", re.I)


@dataclass(frozen=True, slots=True)
class Statement:
    """A chain of relations.

    Attributes:
        claims: Its pairs, in order; the right side of each is the left side of the next.
        parts: What stands between its signs, one more than there are pairs.
        shown: Its text on one line.
    """

    claims: tuple[Claim, ...]
    parts: tuple[Operand, ...]
    shown: str

    @property
    def start(self) -> int:
        """Its first character in the step."""
        return self.claims[0].start

    @property
    def end(self) -> int:
        """The character behind its last."""
        return self.claims[-1].end

    @property
    def doubt(self) -> str:
        """Why it may not say what it seems to say; a mere supposition is none, as consequences hold all the same."""
        return next(
            (c.doubt for c in self.claims if c.doubt and not (c.supposed and not _DENIES.match(c.doubt))), ""
        )

    @property
    def relation(self) -> str:
        """Its sign where it has one, else empty."""
        return self.claims[0].relation if len(self.claims) == 1 else ""


@lru_cache(maxsize=256)
def statements_of(text: str) -> tuple[Statement, ...]:
    """The statements of a step, in order."""
    groups: list[list[Claim]] = []
    for claim in claims_of(text, every=True):
        if claim.chained and groups and groups[-1][-1].right.start == claim.left.start:
            groups[-1].append(claim)
        else:
            groups.append([claim])
    return tuple(
        Statement(tuple(g), (g[0].left, *(c.right for c in g)), shown(text, g[0].start, g[-1].end))
        for g in groups
    )


_ALTERNATIVES = re.compile(r"\b(?:or|and)\b|;")


def is_alternative(statements: Sequence[Statement], index: int, text: str) -> bool:
    """Whether a statement is the last of several that were given side by side."""
    if index < 1:
        return False
    between = text[statements[index - 1].end : statements[index].start]
    return len(between) < 60 and _ALTERNATIVES.search(between) is not None


class Link(IntEnum):
    """How one statement follows another."""

    NONE = 0
    BESIDE = 1
    """Nothing but layout stands between them."""
    DRAWN = 2
    """Words or an arrow say that the second follows."""


_TOKEN = re.compile(
    r"\\(?:text|textbf|textrm|mbox)\s*\{|\\begin\{[a-z]+\*?\}|\\end\{[a-z]+\*?\}|\\[a-zA-Z]+|\\."
    r"|[^\W\d_]+(?:['’-][^\W\d_]+)*|\d+|\S",
)
# "Solving x^2 - 4 = 0" names an equation and draws none.
_TO_SOLVE = re.compile(r"\b(?:solv\w+|find\w*|factor\w*)[\s\\(\[$]*\Z", re.I)
# "If we combine like terms" supposes nothing; "which is" between two equations draws the second.
_AS_SAID = re.compile(
    r"\bif (?:we|you|one|i)(?= (?:now |then |just |further )?[a-z])|\blet(?:'s|’s| us)\b|\bafter\b"
    r"|\bfirst,|\bright\b|\bok\b",
    re.I,
)
_WHICH_IS = re.compile(
    r"[\s$\\)\]}.,]{1,9}(?:which|that|this) (?:is|equals|is equal to)[\s$\\(\[:]{1,6}\Z", re.I
)
_ARROWS = frozenset("⇒ → ⟹ ⟶ ∴ ⇔ \\Rightarrow \\implies \\rightarrow \\to \\Longrightarrow \\iff \\Leftrightarrow "
                    "\\therefore \\longrightarrow".split())  # fmt: skip
_LAYOUT = frozenset(
    "\\( \\) \\[ \\] $ { } , . : ; * & \\\\ \\, \\; \\: \\! \\  "
    "\\quad \\qquad \\left \\right \\text{ # - – ` > \\displaystyle".split(" ")
)
_DRAWS = frozenset(
    "so thus therefore hence then gives give giving yields yield yielding implies implying means becomes become "
    "simplifies simplify simplifying simplified simplification get gets getting obtain obtaining equivalent "
    "equivalently expand expands expanding expanded combine combining combined collecting rearrange rearranging "
    "rearranged rewrite rewriting rewritten factor factoring factors factored solve solving solved divide dividing "
    "dividing subtract subtracting add adding multiply multiplying distribute distributing isolate isolating cancel "
    "cancelling canceling reduces reduce reducing leads leading find cross-multiplying cross-multiply cross "
    "transposing moving move find taking take".split()
)
_NEUTRAL = frozenset(
    "this which that to us we have both sides side by from each the equation into as it can be is now next finally "
    "further again like terms term equals same left right hand left-hand right-hand in on out and a an for form "
    "standard quadratic root roots square will could need our i.e value "
    "common denominator fraction fractions parentheses numerator using distributive property with e step "
    "following result expression here all everything together over up through i ie ".split()
)


def link_between(between: str) -> Link:
    """How the statement behind a text follows the one before it."""
    if len(between) > MAX_LINK_CHARS:
        return Link.NONE
    if _TO_SOLVE.search(between):
        return Link.NONE
    drawn = _WHICH_IS.match(between) is not None
    for match in _TOKEN.finditer(_AS_SAID.sub(" ", between)):
        token = match.group()
        if token in _ARROWS:
            drawn = True
        elif (
            token in _LAYOUT
            or token.startswith(("\\begin{align", "\\end{align", "\\begin{eq", "\\end{eq"))
            or token[0].isdigit()
            or (len(token) == 1 and token.isalpha())
        ):
            continue
        elif token.lower() in _DRAWS:
            drawn = True
        elif token.lower() not in _NEUTRAL:
            return Link.NONE
    return Link.DRAWN if drawn else Link.BESIDE
