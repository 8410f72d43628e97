"""One queue of solutions to score, so that a reward model works on batches whatever search asks."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepward.prm.errors import ModelError
from stepward.prm.policy import RewardModel
from stepward.prm.types import Problem


@dataclass(slots=True)
class ScoreQueue:
    """Gathers what is asked for at the same time and scores it in one call, in a thread.

    Attributes:
        model: The reward model.
        max_batch: Most solutions a call.
        scored: Solutions scored so far.
    """

    model: RewardModel
    max_batch: int = 256
    scored: int = 0
    _waiting: list[tuple[Problem, Sequence[str], "asyncio.Future[tuple[float, ...]]"]] = field(
        default_factory=list["tuple[Problem, Sequence[str], asyncio.Future[tuple[float, ...]]]"]
    )
    _worker: "asyncio.Task[None] | None" = None

    async def score(self, problem: Problem, steps: Sequence[str]) -> tuple[float, ...]:
        """P(step is right) for each step of a solution or of its beginning.

        Raises:
            ModelError: The reward model fails; every solution of the batch gets the fault.
        """
        future: asyncio.Future[tuple[float, ...]] = asyncio.get_running_loop().create_future()
        self._waiting.append((problem, steps, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        # One turn of the loop lets every task that is ready put its solution in before the batch is closed.
        await asyncio.sleep(0)
        while self._waiting:
            batch, self._waiting = self._waiting[: self.max_batch], self._waiting[self.max_batch :]
            try:
                scores = await asyncio.to_thread(
                    self.model.score, [p for p, _, _ in batch], [s for _, s, _ in batch]
                )
                if len(scores) != len(batch):
                    raise ModelError(
                        f"{self.model.name} answered {len(scores)} rows of scores for {len(batch)} solutions"
                    )
            except Exception as fault:
                # The fault belongs to those who wait for these scores; the queue goes on.
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(fault)
                continue
            self.scored += len(batch)
            for (_, _, future), row in zip(batch, scores, strict=True):
                if not future.done():
                    future.set_result(row)
