"""When rollouts would be wasted, and what a row is marked with.

A problem whose draws are all right, or all wrong, has a solve rate near 1 or 0: rollouts tell little of its steps.
A solution whose first rollouts all end without an answer that could be judged will not do better with more of them.
"""

from collections.abc import Sequence

from stepward.prm.types import Outcome

GIVE_UP_AFTER = 8
"""Rollouts of a solution, none of which could be judged, after which no more are drawn."""
_UNFINISHED = (Outcome.TRUNCATED, Outcome.NO_ANSWER)


def solve_rate_mark(outcomes: Sequence[Outcome | None], *, at_least: int = 2) -> str | None:
    """``solve_rate_1`` or ``solve_rate_0`` where all draws that were judged, ``at_least`` of them, agree."""
    judged = [o for o in outcomes if o in (Outcome.RIGHT, Outcome.WRONG)]
    if len(judged) < at_least or len(set(judged)) != 1:
        return None
    return "solve_rate_1" if judged[0] is Outcome.RIGHT else "solve_rate_0"


def given_up(outcomes: Sequence[Sequence[Outcome]], unfinished_as_wrong: bool) -> bool:
    """Whether a solution has GIVE_UP_AFTER rollouts or more, by prefix, and none of them tells anything."""
    telling = (Outcome.RIGHT, Outcome.WRONG, *(_UNFINISHED if unfinished_as_wrong else ()))
    told = any(o in telling for at_prefix in outcomes for o in at_prefix)
    return not told and sum(map(len, outcomes)) >= GIVE_UP_AFTER


def marks_of(
    root: Sequence[Outcome | None],
    outcomes: Sequence[Sequence[Outcome]],
    *,
    on_policy: bool,
    no_majority: bool,
    unfinished_as_wrong: bool,
) -> tuple[str, ...]:
    """The marks of a row, see ``prm.types.MARKS``.

    Args:
        root: Outcomes of all draws from the bare problem.
        outcomes: Those of the solution's rollouts by prefix.
        on_policy: The completer is the generator.
        no_majority: There was nothing to compare answers with although votes or a judge were asked.
        unfinished_as_wrong: Draws without an answer tell something.
    """
    found = [solve_rate_mark(root)]
    found += ["no_verdict"] if given_up(outcomes, unfinished_as_wrong) else []
    found += ["no_majority"] if no_majority else []
    found += [] if on_policy else ["off_policy"]
    return tuple(mark for mark in found if mark is not None)
