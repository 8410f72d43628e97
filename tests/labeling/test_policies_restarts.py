"""An in-process engine that dies: started again, nothing lost, the poison named. Only the engine is a fake."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepward.labeling.policies.vllm import RestartedEngine, load_vllm
from stepward.prm.errors import EngineError, ModelError


class Death(Exception):
    pass


class Fake:
    """Answers with its prompt; dies, for all in flight, when it meets a poison prompt or at a given request."""

    lives = 0

    def __init__(self, dies_at: int | None = None, poison: int | None = None) -> None:
        Fake.lives += 1
        self.dies_at, self.poison, self.dead, self.seen = dies_at, poison, False, 0

    async def generate(
        self, prompt: dict[str, list[int]], params: Any, request_id: str
    ) -> AsyncIterator[Any]:
        self.seen += 1
        if self.seen == self.dies_at or prompt["prompt_token_ids"] == [self.poison]:
            self.dead = True
        for _ in range(3):
            await asyncio.sleep(0)
            if self.dead:
                raise Death("engine process is gone")
        yield (prompt["prompt_token_ids"], params)

    def shutdown(self) -> None:
        self.dead = True


def engine(make: Any, *, max_in_flight: int = 8, max_restarts: int = 3) -> RestartedEngine:
    return RestartedEngine(
        make,
        lambda e: isinstance(e, Death),
        max_in_flight=max_in_flight,
        max_restarts=max_restarts,
        name="fake",
    )


async def test_what_was_in_flight_is_sampled_again_with_the_same_parameters() -> None:
    lives = iter([Fake(dies_at=5), Fake()])
    restarted = engine(lambda: next(lives))
    outputs = await asyncio.gather(*(restarted.generate([i], f"seed {i}") for i in range(20)))
    assert outputs == [([i], f"seed {i}") for i in range(20)]
    assert restarted.restarts == 1
    await restarted.close()


async def test_a_request_that_kills_the_engine_alone_is_found_and_the_others_are_served() -> None:
    restarted = engine(lambda: Fake(poison=7), max_restarts=10)
    outputs = await asyncio.gather(
        *(restarted.generate([i], None) for i in range(16)), return_exceptions=True
    )
    assert [i for i, o in enumerate(outputs) if isinstance(o, Exception)] == [7]
    assert "when it was alone" in str(outputs[7])
    await restarted.close()


async def test_restarts_are_bounded() -> None:
    Fake.lives = 0
    restarted = engine(lambda: Fake(dies_at=1), max_in_flight=4, max_restarts=2)
    outputs = await asyncio.gather(
        *(restarted.generate([i], None) for i in range(12)), return_exceptions=True
    )
    assert all(isinstance(o, Exception) for o in outputs)
    assert any(isinstance(o, EngineError) and "died 3 times" in str(o) for o in outputs)
    assert Fake.lives == 3
    await restarted.close()


async def test_requests_that_wait_are_let_in_one_by_one_in_order_and_a_cancelled_one_frees_its_place() -> (
    None
):
    seen: list[int] = []
    woken = 0

    class Noting(Fake):
        async def generate(
            self, prompt: dict[str, list[int]], params: Any, request_id: str
        ) -> AsyncIterator[Any]:
            seen.append(prompt["prompt_token_ids"][0])
            async for answer in super().generate(prompt, params, request_id):
                yield answer

    restarted = engine(Noting, max_in_flight=2)
    gate_admit = restarted._gate.admit

    def counted() -> None:
        nonlocal woken
        before = restarted._gate.inside
        gate_admit()
        woken += restarted._gate.inside - before

    restarted._gate.admit = counted  # type: ignore[method-assign]
    tasks = [asyncio.create_task(restarted.generate([i], None)) for i in range(300)]
    await asyncio.sleep(0)
    tasks[5].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [i for i, d in enumerate(done) if isinstance(d, asyncio.CancelledError)] == [5]
    assert seen == [i for i in range(300) if i != 5]
    # Two went in at once, one never did, and each of the others was woken once.
    assert woken == 297
    assert restarted._gate.inside == 0
    await restarted.close()


async def test_an_error_that_is_no_death_is_not_repeated() -> None:
    class Refusing(Fake):
        async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[Any]:
            raise ValueError("max_tokens")
            yield

    restarted = engine(Refusing)
    with pytest.raises(EngineError, match="ValueError: max_tokens"):
        await restarted.generate([1], None)
    assert restarted.restarts == 0
    await restarted.close()
    with pytest.raises(EngineError, match="closed"):
        await restarted.generate([1], None)


def test_a_missing_vllm_is_named_with_its_remedy() -> None:
    pytest.importorskip("torch")
    try:
        import vllm  # noqa: F401
    except ImportError:
        with pytest.raises(ModelError, match=r"stepward\[vllm\]"):
            load_vllm("some/model")
    else:
        pytest.skip("vllm is installed here")
