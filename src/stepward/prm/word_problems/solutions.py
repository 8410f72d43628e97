"""The exact checker: which step of any solution of a generated word problem is the first wrong one.

What makes a step right, in this world (and nothing else does):

1. Every equation in it is true, and its result is an amount of the story: a value that the statement's own
   reading passes through, a partial sum of a run of gains and losses in any order, or a partial product of a
   run of multiplications and divisions in any order. Grouping and order inside a run are free; leaving the run
   is not, so dividing before a gain that comes first is an error of logic, although the equation is true.
2. Its operands are amounts that are known by then: numbers of the statement or results of earlier right steps.
   Where one number stands for several amounts the step is right if any of them makes it so.
3. A number outside an equation is a known amount. After "answer is" it is the gold answer.
4. Words carry no claim. A step without numbers is right; so is a repeated step.

Wrong is everything else: a false equation, a true one whose result is no amount of the story (a misread phrase,
a distractor, a dropped step that something is built upon), a number from nowhere, a formula that cannot be read,
and an answer line that does not give the gold answer. A solution that ends without an answer has no wrong
*step* for that: ``check_steps`` reports it as unanswered.

An amount is known not by its number but by how it comes from the statement's numbers. That is decided by
evaluating it at a fixed pseudo-random point of the field of 2**61 - 1 elements instead of the story's own
numbers: two different expressions agree there with probability below 1e-16 (Schwartz 1980, Zippel 1979).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

from stepward.prm.seeds import derive_seed
from stepward.prm.types import Problem
from stepward.prm.word_problems.phrases import Reading
from stepward.prm.word_problems.problems import parse

_FIELD = (1 << 61) - 1
_MAX_OPERANDS = 8


class ErrorKind(StrEnum):
    """What is wrong with a step."""

    ARITHMETIC = "arithmetic"  # an equation is false
    OPERAND = "operand"  # an operand is no known amount
    LOGIC = "logic"  # true, of known amounts, but no amount of the story
    MALFORMED = "malformed"  # a number or formula that cannot be read as a claim
    ANSWER = "answer"  # the final answer is not the gold answer


@dataclass(frozen=True, slots=True)
class StepCheck:
    """What the checker found in a solution.

    Attributes:
        first_error: Index of the first wrong step, or None.
        kind: What is wrong with it, or None.
        is_answered: True where some step states a final answer.
    """

    first_error: int | None
    kind: ErrorKind | None
    is_answered: bool

    @property
    def is_right(self) -> bool:
        """True for a whole solution without a wrong step."""
        return self.first_error is None and self.is_answered


def first_wrong_step(problem: Problem, steps: Sequence[str]) -> int | None:
    """Index of the first wrong step, or None where no step is wrong.

    Args:
        problem: A generated problem; only its statement is read.
        steps: Step texts, the answer line among them.

    Raises:
        FormatError: The problem is not a generated one.
    """
    return check_steps(problem, steps).first_error


def check_steps(problem: Problem, steps: Sequence[str]) -> StepCheck:
    """Like ``first_wrong_step``, with the kind of error and whether an answer is given."""
    truth = _truth(problem.text)
    known = {value: set(points) for value, points in truth.given}
    is_answered = any(_ANSWER_WORDS.search(step) for step in steps)
    for index, step in enumerate(steps):
        kind = _fault(step, truth, known)
        if kind is not None:
            return StepCheck(index, kind, is_answered)
    return StepCheck(None, None, is_answered)


def right_steps(problem: Problem) -> tuple[str, ...]:
    """The plain right solution: one equation a step, and the answer line.

    Raises:
        FormatError: The problem is not a generated one.
    """
    story = parse(problem.text)
    equations = tuple(f"{left} {op} {right} = {result}" for left, op, right, result in story.equations)
    return (*equations, answer_line(story.answer))


def answer_line(answer: int) -> str:
    """The last step of a solution."""
    return f"The answer is {answer}."


# ---- The amounts of a story --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Amount:
    """A sum of signed terms or a product of factors with exponents +-1, flattened; or a leaf without parts.

    ``point`` is its value in the field.
    """

    point: int
    op: str = ""
    parts: "tuple[tuple[int, _Amount], ...]" = ()
    is_constant: bool = False


@dataclass(frozen=True, slots=True)
class _Truth:
    given: tuple[tuple[Fraction, frozenset[int]], ...]
    amounts: frozenset[int]
    answer: int


def _inverse(point: int) -> int:
    return pow(point, -1, _FIELD)


def _sum(*terms: tuple[int, _Amount]) -> _Amount:
    flat: list[tuple[int, _Amount]] = []
    for sign, term in terms:
        flat += [(sign * s, t) for s, t in term.parts] if term.op == "+" else [(sign, term)]
    return _Amount(sum(s * t.point for s, t in flat) % _FIELD, "+", tuple(flat))


def _product(*factors: tuple[int, _Amount]) -> _Amount:
    flat: list[tuple[int, _Amount]] = []
    for sign, factor in factors:
        flat += [(sign * s, f) for s, f in factor.parts] if factor.op == "*" else [(sign, factor)]
    point = 1
    for sign, factor in flat:
        point = point * (factor.point if sign > 0 else _inverse(factor.point)) % _FIELD
    return _Amount(point, "*", tuple(flat))


def _constant(value: int) -> _Amount:
    return _Amount(value, is_constant=True)


def _acted(reading: Reading, x: _Amount, b: _Amount, c: _Amount) -> _Amount:
    """``word_problems.act`` once more, on amounts."""
    r = Reading
    match reading:
        case r.NOTHING | r.NOW:
            return x
        case r.GAIN:
            return _sum((1, x), (1, b))
        case r.LOSS:
            return _sum((1, x), (-1, b))
        case r.TIMES:
            return _product((1, x), (1, b))
        case r.PART:
            return _product((1, x), (-1, b))
        case r.SHARE:
            return _product((1, x), (-1, _sum((1, b), (1, _constant(1)))))
        case r.PART_OUT:
            return _sum((1, x), (-1, _product((1, x), (-1, b))))
        case r.PACKS_IN:
            return _sum((1, x), (1, _product((1, b), (1, c))))
        case r.PACKS_OUT:
            return _sum((1, x), (-1, _product((1, b), (1, c))))
        case r.DOZENS_IN:
            return _sum((1, x), (1, _product((1, b), (1, _constant(12)))))
        case r.WEEKS_IN:
            return _sum((1, x), (1, _product((1, b), (1, _constant(7)), (1, c))))
        case r.MISSING:
            return _sum((1, b), (-1, x))
        case r.BOTH_MORE:
            return _sum((1, x), (1, x), (1, b))
        case r.BOTH_FEWER:
            return _sum((1, x), (1, x), (-1, b))
        case _:
            raise AssertionError(f"{reading} is only a misreading; no phrase means it")


@lru_cache(maxsize=4096)
def _truth(statement: str) -> _Truth:
    story = parse(statement)
    given: dict[Fraction, set[int]] = {}

    def atom(value: int, *name: int) -> _Amount:
        amount = _Amount(derive_seed(0, statement, *name) % _FIELD)
        given.setdefault(Fraction(value), set()).add(amount.point)
        return amount

    nothing = _constant(0)
    running = atom(story.start, 0)
    roots = [running]
    for place, event in enumerate(story.events, start=1):
        atoms = [atom(number, place, i) for i, number in enumerate(event.numbers)] + [nothing, nothing]
        if event.phrase.reading is Reading.SHARE:
            # "with 3 friends" makes 4 who share: known without a step of its own.
            given.setdefault(Fraction(event.numbers[0] + 1), set()).add((atoms[0].point + 1) % _FIELD)
        running = _acted(event.phrase.reading, running, atoms[0], atoms[1])
        roots.append(running)
    return _Truth(
        tuple((value, frozenset(points)) for value, points in given.items()), _reachable(roots), story.answer
    )


def _reachable(roots: Iterable[_Amount]) -> frozenset[int]:
    """Every partial sum and product of the amounts and of their parts."""
    amounts = set[int]()
    stack, done = list(roots), set[int]()
    while stack:
        node = stack.pop()
        if node.point in done or not node.parts:
            continue
        done.add(node.point)
        if node.op == "+":
            # The difference of two amounts can be taken from either side.
            sums = _partial(0, [p.point * s % _FIELD for s, p in node.parts if not p.is_constant], add=True)
            amounts |= sums | {-s % _FIELD for s in sums}
        else:
            ups = [p.point for s, p in node.parts if s > 0]
            downs = [p.point for s, p in node.parts if s < 0]
            amounts |= _partial(1, ups + [_inverse(p) for p in downs], add=False)
            amounts |= _partial(1, downs, add=False)
        stack += [p for _, p in node.parts]
    return frozenset(amounts)


def _partial(start: int, parts: list[int], *, add: bool) -> set[int]:
    reached = {start}
    for part in parts:
        reached |= {(r + part if add else r * part) % _FIELD for r in reached}
    return reached - {start}


# ---- Reading a step ----------------------------------------------------------------------------------------

_ANSWER_WORDS = re.compile(r"\banswer\b.{0,3}\bis\b|\banswer\s*[:=]", re.IGNORECASE)
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_TOKEN = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|[-+*/=]|[^\W\d_]+(?:[-'][^\W\d_]+)*|\S")
_BETWEEN_NUMBERS = re.compile(r"(?<=\d)\s*[x×]\s*(?=\d)")


def _fault(step: str, truth: _Truth, known: dict[Fraction, set[int]]) -> ErrorKind | None:
    """What is wrong with a step, or None; what it derives is added to ``known``."""
    text = _BETWEEN_NUMBERS.sub(" * ", step.translate(_SIGNS))
    words_before = ""
    for is_formula, tokens in _runs(text):
        if not is_formula:
            words_before += " " + " ".join(tokens)
            continue
        is_answer = _ANSWER_WORDS.search(words_before) is not None
        kind = _formula_fault(tokens, truth, known, is_answer)
        if kind is not None:
            return kind
        words_before = ""
    return ErrorKind.MALFORMED if _ANSWER_WORDS.search(words_before) else None


def _runs(text: str) -> list[tuple[bool, list[str]]]:
    """Tokens in maximal runs of formula and of words; a run of lone hyphens counts as words."""
    runs: list[tuple[bool, list[str]]] = []
    for token in _TOKEN.findall(text):
        is_math = token[0].isdigit() or token in "-+*/="
        if runs and runs[-1][0] == is_math:
            runs[-1][1].append(token)
        else:
            runs.append((is_math, [token]))
    return [(math and set(tokens) != {"-"}, tokens) for math, tokens in runs]


def _formula_fault(
    tokens: list[str], truth: _Truth, known: dict[Fraction, set[int]], is_answer: bool
) -> ErrorKind | None:
    sides = " ".join(tokens).split("=")
    left = _terms(sides[0].split())
    right = _terms(sides[-1].split())
    if len(sides) > 2 or left is None or right is None or len(right) != 1:
        return ErrorKind.MALFORMED
    result = right[0][1]
    if len(sides) == 1:  # a number that stands alone
        if is_answer:
            return None if result == truth.answer else ErrorKind.ANSWER
        return None if result in known else ErrorKind.OPERAND
    candidates = _evaluate(left, known)
    if not any(value == result for value, _ in candidates):
        return ErrorKind.ARITHMETIC
    settled = {p for points in known.values() for p in points}
    derived = {point for _, point in candidates if point in truth.amounts or point in settled}
    if not derived:
        free = [v for _, v in left if v not in known]
        return ErrorKind.OPERAND if free else ErrorKind.LOGIC
    known.setdefault(result, set()).update(derived)
    return ErrorKind.ANSWER if is_answer and result != truth.answer else None


def _terms(tokens: list[str]) -> list[tuple[str, Fraction]] | None:
    """``12 + 7`` as [("", 12), ("+", 7)]; None where it is no chain of numbers."""
    terms: list[tuple[str, Fraction]] = []
    operator, sign = "", 1
    expects_number = True
    for token in tokens:
        if token[0].isdigit():
            if not expects_number:
                return None
            terms.append((operator, sign * Fraction(token.replace(",", ""))))
            expects_number, sign = False, 1
        elif expects_number:
            if token != "-" or sign < 0:
                return None
            sign = -1
        else:
            operator, expects_number = token, True
    return None if expects_number or len(terms) > _MAX_OPERANDS else terms


def _evaluate(
    terms: list[tuple[str, Fraction]], known: dict[Fraction, set[int]]
) -> set[tuple[Fraction, int]]:
    """(value, point) of the chain, products first, for each amount that its numbers can stand for.

    A number may also stand for itself, as the 2 in "half of them". Empty where it divides by zero.
    """
    total: set[tuple[Fraction, int]] = set()
    current: set[tuple[Fraction, int]] = set()
    for operator, number in terms:
        own = number.numerator * _inverse(number.denominator) % _FIELD
        leaves = {(number, point) for point in known.get(number, set()) | {own}}
        if operator in ("*", "/"):
            current = _combine(current, operator, leaves)
        else:
            total = _combine(total, "+", current) if total else current
            current = {(-v, -p % _FIELD) for v, p in leaves} if operator == "-" else leaves
    return _combine(total, "+", current) if total else current


def _combine(
    lefts: set[tuple[Fraction, int]], operator: str, rights: set[tuple[Fraction, int]]
) -> set[tuple[Fraction, int]]:
    out: set[tuple[Fraction, int]] = set()
    for a, p in lefts:
        for b, q in rights:
            if operator == "+":
                out.add((a + b, (p + q) % _FIELD))
            elif operator == "*":
                out.add((a * b, p * q % _FIELD))
            elif b and q:
                out.add((a / b, p * _inverse(q) % _FIELD))
    return out
