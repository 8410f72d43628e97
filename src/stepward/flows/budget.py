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
    began: float


@dataclass(slots=True)
class Budget:
    """Admits problems.

    Attributes:
        progress: What has been spent.
        tokens: Most tokens that this process may sample, or None.
        hours: Most hours, or None.
        spent_before: Tokens that a pilot has spent of them.
        least: Tokens that a problem surely takes (its solutions), 0 where not known.
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

    async def admit(self) -> None:
        """Wait until one more problem may start.

        Raises:
            BudgetSpent: It may not.
        """
        while self.tokens is not None and self.progress.problems == 0 and self.in_flight >= self._pioneers():
            await asyncio.sleep(0.01)
        if self.hours is not None and time.monotonic() - self.progress.began >= self.hours * 3600:
            raise BudgetSpent(f"the budget of {self.hours} hours is spent")
        if self.tokens is not None:
            mean = self.progress.tokens / self.progress.problems if self.progress.problems else self.least
            spent = self.spent_before + self.progress.tokens
            if spent + mean * (self.in_flight + 1) > self.tokens:
                raise BudgetSpent(f"the budget of {self.tokens:,} tokens is spent")
        self.in_flight += 1

    def _pioneers(self) -> int:
        if self.tokens is None or self.least <= 0:
            return self.PIONEERS
        # A problem costs its solutions and as much again for rollouts, as a first guess.
        held = int((self.tokens - self.spent_before) / (2 * self.least))
        return min(self.PIONEERS, max(1, held))
