"""Several requests at the same time, one fault for all."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first fault cancels the others, which would say the same, and is raised as it is."""
    if len(works) == 1:  # a task of its own would be half the cost of a round
        return [await works[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as faults:
        raise faults.exceptions[0] from faults
    return [t.result() for t in tasks]
