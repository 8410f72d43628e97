"""Requests at the same time: results in order, and one fault for all."""

import asyncio

import pytest

from stepward.labeling.together import together
from stepward.prm.errors import EngineError


@pytest.mark.parametrize("number", [0, 1, 3])
def test_results_come_in_the_order_of_the_requests_whatever_ends_first(number: int):
    async def one(i: int) -> int:
        for _ in range(number - i):
            await asyncio.sleep(0)
        return i

    assert asyncio.run(together([one(i) for i in range(number)])) == list(range(number))


def test_the_first_fault_cancels_the_others_and_is_raised_as_it_is():
    cancelled: list[int] = []

    async def fails() -> int:
        await asyncio.sleep(0)
        raise EngineError("gone")

    async def waits(i: int) -> int:
        try:
            return await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(i)
            raise

    with pytest.raises(EngineError, match="gone"):
        asyncio.run(together([waits(0), fails(), waits(2)]))
    assert cancelled == [0, 2]
    with pytest.raises(EngineError, match="gone"):
        asyncio.run(together([fails()]))
