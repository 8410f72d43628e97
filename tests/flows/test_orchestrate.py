"""Prefect around a run changes no byte, and its faults come back as they are."""

import asyncio

import pytest

from stepward.flows.orchestration.prefect_server import set_quiet_defaults
from stepward.prm.errors import EngineError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]


@pytest.fixture(scope="module")
def prefect():
    set_quiet_defaults()
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield


def test_what_a_flow_hands_to_through_becomes_a_task_and_its_result_comes_back():
    from stepward.flows.orchestration.orchestrate import as_flow

    done = []

    async def body(through):
        for i in range(3):

            async def work(i=i):
                done.append(i)

            await through(f"shard {i}", work)
        return "result"

    assert asyncio.run(as_flow("label", {"seed": 0}, body)) == "result"
    assert done == [0, 1, 2]


def test_only_a_fault_of_the_engine_that_may_pass_is_tried_again(monkeypatch):
    from stepward.flows.orchestration import orchestrate

    monkeypatch.setattr(orchestrate, "_RETRY_DELAYS_S", [0.0])
    tries = []

    async def body(through):
        async def flaky():
            tries.append("flaky")
            if len(tries) < 2:
                raise EngineError("502", retryable=True)

        async def broken():
            tries.append("broken")
            raise ValueError("bad row 7")

        await through("a", flaky)
        await through("b", broken)

    with pytest.raises(ValueError, match="bad row 7"):
        asyncio.run(orchestrate.as_flow("label", {}, body))
    assert tries == ["flaky", "flaky", "broken"]
