"""The step verifier ``algebra``: rewritings, derivations from equations, and other claims about unknowns.

Supported means that all claims that were read are true, never that the step is right. Refuted means that a claim is
false in every reading that the text allows. Where a reading is open the verdict is unknown, with the reason.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stepward.prm.types import Problem, Reason, Verdict
from stepward.verifiers.answers.expressions import Unreadable
from stepward.verifiers.base import register_verifier
from stepward.verifiers.claims.decisions import MAX_BEYOND_LIMITS, Decision, Truth, verdict_of
from stepward.verifiers.claims.derivations import decide_derivation
from stepward.verifiers.claims.identities import decide_identity
from stepward.verifiers.claims.integers import decide_congruences, decide_integers
from stepward.verifiers.claims.reading import MAX_CHARS
from stepward.verifiers.claims.statements import MAX_LINK_CHARS, Statement, statements_of

NAME = "algebra"
VERSION = "1"

_ALTERNATIVES = re.compile(r"\b(?:or|and)\b|;")


def decisions_on(text: str, before: str = "") -> list[Decision]:
    """Decisions on the claims of a step, in order.

    Args:
        text: The step.
        before: The step before it, whose last statement this one may go on from.
    """
    found: list[Decision] = []
    beyond = 0
    statements = statements_of(text)
    earlier = statements_of(before[-MAX_LINK_CHARS * 4 :]) if statements and before else ()
    for index, statement in enumerate(statements):
        if beyond >= MAX_BEYOND_LIMITS:
            break
        for claim in statement.claims:
            made = _bounded(lambda c=claim: decide_identity(c, text), claim.start, claim.end)
            beyond += _append(found, made)
        for made in decide_congruences(statement, text):
            beyond += _append(found, made)
        row, at, between = statements, index - 1, text[statements[index - 1].end : statement.start]
        if not index:
            row, at = earlier, len(earlier) - 1
            between = (
                before[-MAX_LINK_CHARS * 4 :][earlier[-1].end :] + "\n" + text[: statement.start]
                if earlier
                else ""
            )
        if at >= 0 and not _is_alternative(row, at, text if index else before[-MAX_LINK_CHARS * 4 :]):
            first = row[at]
            made = _bounded(
                lambda a=first, b=statement, c=between: decide_derivation(a, b, c),
                statement.start,
                statement.end,
            )
            beyond += _append(found, made)
    return sorted([*found, *decide_integers(text[:MAX_CHARS])], key=lambda d: d.start)


def _is_alternative(statements: Sequence[Statement], index: int, text: str) -> bool:
    """Whether a statement is the last of several that were given side by side."""
    if not index:
        return False
    between = text[statements[index - 1].end : statements[index].start]
    return len(between) < 60 and _ALTERNATIVES.search(between) is not None


def _append(found: list[Decision], made: Decision | None) -> bool:
    if made is not None:
        found.append(made)
    return made is not None and made.beyond


def _bounded(decide: Callable[[], Decision | None], start: int, end: int) -> Decision | None:
    try:
        return decide()
    except Unreadable as fault:
        if not fault.over_limit:
            return None
        return Decision(start, end, Truth.OPEN, Reason.UNSUPPORTED, str(fault), beyond=True)


def verify_step(text: str, before: str = "") -> Verdict:
    """The verdict on one step: refuted by its first false claim.

    Args:
        text: The step.
        before: The step before it.
    """
    began = time.process_time()
    return verdict_of(
        decisions_on(text, before), NAME, VERSION, began=began, nothing="no claim about unknowns was read"
    )


@register_verifier(NAME)
@dataclass(frozen=True, slots=True)
class Algebra:
    """The verifier ``algebra``: one verdict a step."""

    name: str = field(default=NAME, init=False)
    version: str = field(default=VERSION, init=False)

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """One verdict a step, each with the span of the claim that it rests on."""
        return [(verify_step(text, steps[i - 1] if i else ""),) for i, text in enumerate(steps)]
