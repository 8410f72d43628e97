"""A verifier of one kind of claim: "12 is even", "7 is odd"."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepward.prm.types import Problem, Verdict, VerdictKind

_CLAIM = re.compile(r"\b(\d{1,50}) is (even|odd)\b")


@dataclass(frozen=True, slots=True)
class Parity:
    """Decides whether a number is even or odd."""

    name: str = "parity"
    version: str = "0.3.0"

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """One verdict for each claim of parity in each step."""
        return [tuple(self._verdict(claim) for claim in _CLAIM.finditer(step)) for step in steps]

    def _verdict(self, claim: re.Match[str]) -> Verdict:
        true = (int(claim[1]) % 2 == 0) == (claim[2] == "even")
        kind = VerdictKind.SUPPORTED if true else VerdictKind.REFUTED
        return Verdict(kind, self.name, self.version, evidence=claim[0], span=claim.span())
