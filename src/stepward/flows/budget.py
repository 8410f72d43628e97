"""A run's budget: problems are admitted until tokens or hours run out; a problem that has begun is finished."""

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from stepward.prm.errors import BudgetSpent


class Spending(Protocol):
    """What the budget reads of a run's progress."""

    problems: int
    tokens: int
    dearest: int
    began: float


@dataclass(slots=True)
class Budget:
    """Admits problems.

    Attributes:
        progress: What has been spent.
        tokens: Most tokens that this process may sample, or None.
        hours: Most hours, or None.
        spent_before: Tokens that a pilot has spent of them.
        least: Tokens that a problem is taken to cost before one has finished: the dearest of a pilot, else its
            solutions alone; 0 where neither is known.
        in_flight: Problems that have begun and not ended.
    """

    progress: Spending
    tokens: int | None
    hours: float | None
    spent_before: int = 0
    least: float = 0.0
    in_flight: int = 0

    PIONEERS = 4
    """Problems that go ahead to show what one costs; fewer where the budget may not hold as many."""

    async def admit(self, problems: int = 1) -> None:
        """Wait until so many more problems may start: each in flight is taken to cost as much as the dearest so far.

        Near the end of the budget problems wait for those in flight, whose cost is then known, so that the budget is
        neither overrun by what had begun nor left unspent.

        Raises:
            BudgetSpent: They may not.
        """
        while True:
            if self.hours is not None and time.monotonic() - self.progress.began >= self.hours * 3600:
                raise BudgetSpent(f"the budget of {self.hours} hours is spent")
            if self.tokens is None or self._holds(self.tokens, problems):
                break
            if not self.in_flight:
                raise BudgetSpent(f"the budget of {self.tokens:,} tokens is spent")
            await asyncio.sleep(0.01)
        self.in_flight += problems

    def _holds(self, tokens: int, problems: int) -> bool:
        # The first to finish are the cheap ones: until many have, few are in flight.
        if self.in_flight and self.in_flight + problems > max(self._pioneers(), 2 * self.progress.problems):
            return False
        each = max(self.progress.dearest, self.least)
        return self.spent_before + self.progress.tokens + each * (self.in_flight + problems) <= tokens

    def _pioneers(self) -> int:
        if self.tokens is None or self.least <= 0:
            return self.PIONEERS
        held = int((self.tokens - self.spent_before) / self.least)
        return min(self.PIONEERS, max(1, held))
