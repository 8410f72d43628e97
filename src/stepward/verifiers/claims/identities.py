r"""Is a rewriting right for every value of its unknowns? ``(x + 1)^2 = x^2 + 2x + 1`` in a chain ``y = a = b``.

The first pair of a chain may be an equation to be solved; a later one whose sides hold the same names is a
rewriting. It is refuted by the canonical forms of both sides or, where those leave it open, by whole numbers at
which the sides have different values; no identity is supported by values alone.
"""

import re
from fractions import Fraction

from stepward.prm.types import Reason
from stepward.verifiers.answers.canonical import Forms, Ratio
from stepward.verifiers.answers.expressions import (
    Expression,
    Number,
    Power,
    Product,
    Sum,
    Symbol,
    walk,
)
from stepward.verifiers.answers.numeric import Point, evaluate
from stepward.verifiers.claims.decisions import Decision, Truth, shown
from stepward.verifiers.claims.exact import MAX_WORK, NO_PRODUCTS, Sides, compare, parse, tame
from stepward.verifiers.claims.reading import Claim

# Letters that usually name a function, and letters that usually stand for one number with an equation of its own.
_APPLIED = re.compile(r"[fghpqFGHPQTS] (?:\^ \{? ?[-\d ]+\}? ?)?\(")
_BOUND_BY_HABIT = frozenset({"\\omega", "\\zeta", "\\phi", "\\alpha", "\\varphi", "ω", "ζ", "φ", "e", "z"})
_NAMED_SO = re.compile(r"\\(?:mathbf|boldsymbol|vec|hat)\Z")
_TRIED = (2, 3, 5)


def decide_identity(claim: Claim, text: str) -> Decision | None:
    """Decide an equality with unknowns that stands behind another in a chain.

    Args:
        claim: From ``claims_of(text, every=True)``.
        text: The step.

    Returns:
        None where it is no rewriting or holds no unknowns.

    Raises:
        Unreadable: A side does not parse or meets a bound.
    """
    if claim.relation != "=" or not (claim.left.computed or claim.right.computed):
        return None
    if NO_PRODUCTS.search(text[claim.start : claim.end]) or _NAMED_SO.search(text[: claim.start][-20:]):
        return None
    left, right = parse(claim.left.text), parse(claim.right.text)
    equation = shown(text, claim.start, claim.end)
    names = [
        frozenset(n.name for n in walk(side) if isinstance(n, Symbol)) - {"pi"} for side in (left, right)
    ]
    if not names[0] and not names[1]:
        return None
    exponents = any(isinstance(n, Power) and any(isinstance(m, Symbol) for m in walk(n.exponent))
                    for side in (left, right) for n in walk(side))  # fmt: skip
    if exponents:
        return _by_values(claim, left, right, names, equation)
    sides = compare(left, right)
    if sides.equal:
        return Decision(claim.start, claim.end, Truth.TRUE, evidence=f"{equation} is an identity")
    if sides.equal is None or not sides.symbolic or not _is_identity(claim, sides, left, right):
        return None
    doubt = claim.doubt or _doubt(claim, left, right, text)
    if doubt:
        reason = f"{equation}: {doubt}"
        return Decision(claim.start, claim.end, Truth.OPEN, Reason.AMBIGUOUS, reason)
    return Decision(
        claim.start, claim.end, Truth.FALSE, evidence=f"{equation} is false: the two polynomials differ"
    )


def _is_identity(claim: Claim, sides: Sides, left: Expression, right: Expression) -> bool:
    """Whether a false equality is claimed for every value of its unknowns.

    A condition on the unknowns may be used in between; with several unknowns that is usual, so that the difference
    must be one term. With one, a side must have something to rewrite: ``6 - x = x^2`` is an equation.
    """
    if not (claim.chained and claim.left.computed and claim.right.computed and sides.unknowns):
        return False
    if _APPLIED.search(claim.left.text) or _APPLIED.search(claim.right.text):
        return False
    if sides.lone_term:
        return True
    named = sides.unknowns - {"i", "pi"}
    return len(named) <= 1 and named.isdisjoint(_BOUND_BY_HABIT) and (_rewritable(left) or _rewritable(right))


def _doubt(claim: Claim, left: Expression, right: Expression, text: str) -> str:
    """Why a rewriting that does not hold may be meant otherwise."""
    written = text[claim.start : claim.end]
    if not re.search(r"[\\\\$]", written) and re.search(r"[\d)a-z]\s+\d*[a-zA-Z]\b", written):
        return "its lines may have been joined, or a letter be a unit"
    forms = Forms(work=MAX_WORK)
    a, b = forms.of(tame(left)), forms.of(tame(right))
    one, other = (
        forms.multiply(a, Ratio(b.denominator, a.denominator)).numerator,
        forms.multiply(b, Ratio(a.denominator, b.denominator)).numerator,
    )
    if one.keys() == other.keys() and all(abs(one[m] - other[m]) * 40 <= abs(one[m]) for m in one):
        return "it may be rounded"
    return ""


def _rewritable(node: Expression) -> bool:
    """Whether an expression is not expanded: it holds a product or power of a sum, or like terms."""
    for part in walk(node):
        if isinstance(part, Product) and any(isinstance(f, Sum) for f in part.factors):
            return True
        if isinstance(part, Power) and isinstance(part.base, Sum):
            return True
    if isinstance(node, Sum):
        return len(Forms(work=MAX_WORK).of(tame(node)).numerator) < len(node.terms)
    return False


def _by_values(
    claim: Claim, left: Expression, right: Expression, names: list[frozenset[str]], equation: str
) -> Decision | None:
    """Powers with an unknown exponent, at whole numbers."""
    if claim.doubt or not claim.chained or names[0] != names[1] or len(names[0]) != 1:
        return None
    if _APPLIED.search(claim.left.text) or _APPLIED.search(claim.right.text):
        return None
    (name,) = names[0]
    if name in ("i", "e") or name in _BOUND_BY_HABIT:
        return None
    for number in _TRIED:
        point = Point(0)
        point.bound[name] = evaluate(Number(Fraction(number)), Point(0))
        a, b = evaluate(left, point), evaluate(right, point)
        if not hasattr(a, "man_exp") or not hasattr(b, "man_exp") or abs(a - b) <= abs(a + b) * 1e-9:
            return None
    return Decision(
        claim.start, claim.end, Truth.FALSE, evidence=f"{equation} is false at {name} = 2, 3 and 5"
    )
