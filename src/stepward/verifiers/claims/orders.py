r"""Orders of plain numbers: ``3/4 < 0.8``, ``\\pi > 4``."""

from stepward.prm.types import Reason
from stepward.verifiers.answers.expressions import Symbol, Unreadable, walk
from stepward.verifiers.claims.decisions import Decision, Truth, shown
from stepward.verifiers.claims.exact import compare, parse
from stepward.verifiers.claims.reading import Claim, not_stated

ORDERS = {"<": "<", ">": ">", "<=": "<=", ">=": ">=", "≤": "<=", "≥": ">=", "\\le": "<=", "\\leq": "<=", "\\ge": ">=",
          "\\geq": ">=", "\\lt": "<", "\\gt": ">", "\\leqslant": "<=", "\\geqslant": ">="}  # fmt: skip


def decide_order(claim: Claim, text: str) -> Decision | None:
    """Decide an order of two plain numbers; None where a side is none.

    Args:
        claim: Whose relation is in ``ORDERS``.
        text: The step.
    """
    try:
        left, right = parse(claim.left.text), parse(claim.right.text)
        if any(isinstance(n, Symbol) and n.name != "pi" for side in (left, right) for n in walk(side)):
            return None
        sides = compare(left, right)
    except Unreadable:
        return None
    if sides.symbolic or ((sides.left is None or sides.right is None) and not sides.equal):
        return None
    sign = ORDERS[claim.relation]
    true = "=" in sign if sides.equal else (sides.left < sides.right) == (sign[0] == "<")  # type: ignore[operator]
    order = shown(text, claim.start, claim.end)
    if true:
        return Decision(claim.start, claim.end, Truth.TRUE, evidence=f"{order} is true")
    units = {*claim.left.units, *claim.right.units}
    word = claim.doubt or not_stated(text, claim.start, claim.end)
    if word or len(units) > 1 or sides.equal:
        return Decision(
            claim.start, claim.end, Truth.OPEN, Reason.AMBIGUOUS, f"{order} does not hold, but {word}"
        )
    return Decision(claim.start, claim.end, Truth.FALSE, evidence=f"{order} is false")
