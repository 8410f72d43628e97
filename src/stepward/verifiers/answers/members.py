"""Further members of the comparison: parsers of others, each call in a worker that can be killed.

They are asked only where the exact comparison is open, because each of them errs silently on its own. Two that
decide the same way decide; one that contradicts another leaves the pair undecided.
"""

import re
from dataclasses import dataclass

from stepward.prm.types import Reason, VerdictKind
from stepward.verifiers.answers.finding import Finding
from stepward.verifiers.workers import CallResult, Supervisor, shared

MEMBERS = ("symbolic", "latex2sympy_member", "math_verify_member")
VERSION = "members-1"
MAX_CHARS = 400
MAX_DIGITS = 40
MAX_BRACES = 60

_MODULE = "stepward.verifiers.answers.peers"
_LONG_DIGITS = re.compile(rf"\d{{{MAX_DIGITS},}}")
_TOWER = re.compile(r"(?:\^|\*\*)\s*\{?\s*(?:\d{5,}|[\d.]*\s*(?:\^|\*\*))")


@dataclass(frozen=True, slots=True)
class Members:
    """Asks the members and joins what they say.

    Attributes:
        supervisor: Runs the workers; None = the shared one.
        cpu_s: CPU seconds a member may spend on one pair.
    """

    supervisor: Supervisor | None = None
    cpu_s: float = 2.0

    @property
    def version(self) -> str:
        """Changes when the members could say something else."""
        return VERSION

    async def ask(self, *, gold: str, answer: str) -> Finding:
        """Let every member compare a pair; arguments as in ``compare_answers``."""
        if (reason := _too_large(gold) or _too_large(answer)) is not None:
            return Finding(VerdictKind.UNKNOWN, Reason.UNSUPPORTED, reason)
        supervisor = self.supervisor or shared()
        calls = [
            await supervisor.arun(
                f"{_MODULE}:{name}", [gold, answer], key=name, version=VERSION, cpu_s=self.cpu_s
            )
            for name in MEMBERS
        ]
        return joined(calls)


def joined(calls: list[CallResult]) -> Finding:
    """One finding from what the members said: two that agree decide, any that disagree leave it open."""
    said = {call.key: str(call.value) for call in calls if call.ok}
    votes = {name: kind for name, kind in said.items() if kind in ("equal", "different")}
    shown = ", ".join(f"{c.key}: {said.get(c.key, c.kind)}" for c in calls)
    if len(set(votes.values())) > 1:
        return Finding(VerdictKind.UNKNOWN, Reason.AMBIGUOUS, f"members disagree ({shown})")
    if len(votes) >= 2:
        equal = "equal" in votes.values()
        return Finding(VerdictKind.SUPPORTED if equal else VerdictKind.REFUTED, why=shown)
    faults = [call.reason for call in calls if not call.ok]
    reason = next((r for r in (Reason.TIMEOUT, Reason.CRASH) if r in faults), Reason.PARSE)
    return Finding(VerdictKind.UNKNOWN, reason, f"too few members decide ({shown})")


def _too_large(text: str) -> str | None:
    """Why a text is not handed to the members, or None: they do not bound their own work."""
    if len(text) > MAX_CHARS:
        return f"{len(text)} characters; members read at most {MAX_CHARS}"
    if text.count("{") + text.count("(") > MAX_BRACES:
        return f"more than {MAX_BRACES} brackets"
    if _LONG_DIGITS.search(text):
        return f"a number of more than {MAX_DIGITS} digits"
    if _TOWER.search(text):
        return "a tower of powers, or a very large one"
    return "control characters" if any(ord(c) < 32 and c not in "\n\t\r" for c in text) else None
