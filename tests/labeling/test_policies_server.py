"""Server engines against a stand-in on the loopback that misbehaves on demand."""

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stepward.labeling.policies.vllm_server import VllmServerPolicy, load_vllm_server
from stepward.prm.errors import EngineError
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.types import FinishReason, Outcome, Prefix, Rollout, Sampler


def stand_in_module() -> ModuleType:
    name = "stepward_tests_stand_in_server"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("stand_in_server.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@contextlib.asynccontextmanager
async def served(tokenizer: Path, *servers: Any, **options: Any) -> AsyncIterator[VllmServerPolicy]:
    """A policy on running stand-ins."""
    urls = [await server.start() for server in servers]
    settings: dict[str, Any] = {"pause_s": 0.001, "deadline_s": 5.0} | options
    policy = await asyncio.to_thread(load_vllm_server, urls, tokenizer=tokenizer, **settings)
    try:
        yield policy
    finally:
        await policy.close()
        for server in servers:
            await server.stop()


def stand_in(**options: Any) -> Any:
    return stand_in_module().StandIn(**options)


def request(i: int = 0, **sampler: Any) -> SampleRequest:
    prefix = Prefix(f"p{i}", (5, 6, 7, i + 1), (9, 9), 1)
    return SampleRequest(prefix, Sampler(**{"max_tokens": 20, **sampler}), derive_seed(3, i), i)


async def test_every_field_of_the_sampler_is_sent_and_nothing_is_left_to_a_default(
    tiny_tokenizer: Path,
) -> None:
    server = stand_in()
    async with served(tiny_tokenizer, server) as policy:
        assert isinstance(policy, Policy)
        asked = request(temperature=0.7, top_p=0.9, top_k=40, min_p=0.1, stop=("\n\n",))
        rollout = await policy.sample(replace(asked, want_logprobs=True))
    sent = server.requests[0]
    assert sent["prompt"] == [5, 6, 7, 1, 9, 9]
    wanted = {
        "seed": asked.seed, "n": 1, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "max_tokens": 20,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop": ["\n\n"],
        "stop_token_ids": [0], "include_stop_str_in_output": True, "skip_special_tokens": False,
        "return_token_ids": True, "logprobs": 0, "stream": False, "model": "stand-in",
    }  # fmt: skip
    assert {k: sent[k] for k in wanted} == wanted
    assert server.sessions == ["p0"]
    assert list(rollout.token_ids) == server.completion(sent["prompt"], asked.seed, 8)
    assert rollout.text == policy.tokenizer.decode(rollout.token_ids)
    assert rollout.logprobs == (-0.1235,) * 8
    assert rollout.finish_reason is FinishReason.STOP
    assert policy.version == "vllm 0.0-stand-in, model runner not told over HTTP"


async def test_seeds_of_63_bits_arrive_whole(tiny_tokenizer: Path) -> None:
    server = stand_in()
    async with served(tiny_tokenizer, server) as policy:
        await policy.sample(replace(request(), seed=2**63 - 1))
    assert server.requests[0]["seed"] == 2**63 - 1


@pytest.mark.parametrize("kind", ["500", "502", "503", "429", "half", "drop", "garbage", "abort"])
async def test_engine_faults_are_repeated_with_the_same_seed(tiny_tokenizer: Path, kind: str) -> None:
    server = stand_in(fault=lambda body, number: kind if number < 2 else None)
    async with served(tiny_tokenizer, server) as policy:
        rollout = await policy.sample(request())
    assert rollout.outcome is None
    assert list(rollout.token_ids) == server.completion([5, 6, 7, 1, 9, 9], request().seed, 8)
    assert server.requests[0] == server.requests[1] == server.requests[2]
    assert policy.usage.retries == 2
    assert sum(policy.usage.faults.values()) == 2


async def test_a_hung_request_meets_its_deadline_and_is_sent_again(tiny_tokenizer: Path) -> None:
    server = stand_in(fault=lambda body, number: "hang" if number == 0 else None)
    async with served(tiny_tokenizer, server, deadline_s=0.2) as policy:
        rollout = await asyncio.wait_for(policy.sample(request()), 10)
    assert rollout.outcome is None
    assert policy.usage.faults == {"hung": 1}


async def test_a_poison_request_is_an_error_and_the_others_are_served(tiny_tokenizer: Path) -> None:
    server = stand_in(fault=lambda body, number: "500" if body["prompt"][3] == 4 else None)
    async with served(tiny_tokenizer, server, most_tries=3, pause_s=0.05) as policy:
        rollouts = await asyncio.gather(*(policy.sample(request(i)) for i in range(8)))
    assert [r.outcome for r in rollouts] == [Outcome.ERROR if i == 3 else None for i in range(8)]
    assert "p3" in (rollouts[3].error or "")
    assert "engine is unwell" in (rollouts[3].error or "")
    assert rollouts[3].finish_reason is FinishReason.ABORT


async def test_a_request_that_kills_the_server_is_reported_and_no_other_is_lost(tiny_tokenizer: Path) -> None:
    # Whatever is in flight beside it breaks too, every time; alone, each of the others would use up its 5 tries.
    server = stand_in(kills=lambda body: body["prompt"][3] == 4, delay_s=0.005)
    async with served(tiny_tokenizer, server, max_in_flight=16) as policy:
        rollouts = await asyncio.gather(*(policy.sample(request(i % 40)) for i in range(40)))
    assert [r.outcome for r in rollouts] == [Outcome.ERROR if i == 3 else None for i in range(40)]
    assert "the connection broke" in (rollouts[3].error or "")
    assert server.deaths >= 5


async def test_a_server_that_a_supervisor_starts_again_is_waited_for(tiny_tokenizer: Path) -> None:
    server = stand_in(delay_s=0.01)
    async with served(tiny_tokenizer, server, most_tries=2) as policy:
        want = await asyncio.gather(*(policy.sample(request(i)) for i in range(20)))
        url = policy._pool.base_urls[0]
        running = asyncio.gather(*(policy.sample(request(i)) for i in range(20)))
        await asyncio.sleep(0)
        await server.stop()
        for writer in list(server._writers):
            writer.transport.abort()
        # Longer than two tries last.
        await asyncio.sleep(0.05)
        server._server = await asyncio.start_server(
            server._connection, "127.0.0.1", int(url.split(":")[2].split("/")[0])
        )
        got = await asyncio.wait_for(running, 30)
    assert [r.token_ids for r in got] == [r.token_ids for r in want]
    assert policy.usage.faults.get("connect", 0) > 2


async def test_a_server_that_is_gone_is_an_exception(tiny_tokenizer: Path) -> None:
    server = stand_in()
    async with served(tiny_tokenizer, server, most_tries=2, restart_s=0) as policy:
        await server.stop()
        policy._pool.base_urls = ("http://127.0.0.1:9/v1",)
        with pytest.raises(EngineError, match=r"p0.*no connection.*2 tries") as raised:
            await policy.sample(request())
    assert raised.value.retryable


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("other_model", "answered with model 'another'"),
        ("other_prompt", "continued other ids"),
        ("no_ids", "openai engine"),
    ],
)
async def test_an_answer_that_is_not_what_was_asked_is_final(
    tiny_tokenizer: Path, kind: str, says: str
) -> None:
    server = stand_in(fault=lambda body, number: kind)
    async with served(tiny_tokenizer, server) as policy:
        with pytest.raises(EngineError, match=says):
            await policy.sample(request())
    assert len(server.requests) == 1


async def test_wrong_url_key_and_model_are_named_before_the_first_rollout(tiny_tokenizer: Path) -> None:
    server = stand_in(api_key="s3cret")
    url = await server.start()

    def load(target: Any, **options: Any) -> str:
        with pytest.raises(EngineError) as raised:
            load_vllm_server(target, tokenizer=tiny_tokenizer, **options)
        return str(raised.value)

    for options, says in (
        ({}, "key is refused"),
        ({"api_key": "n0t-the-key"}, "key is refused"),
        ({"api_key": "s3cret", "model": "llama"}, "does not serve 'llama' but stand-in"),
    ):
        message = await asyncio.to_thread(load, url, **options)
        assert says in message
        assert "n0t-the-key" not in message
        assert "s3cret" not in message
    assert "HTTP 404" in await asyncio.to_thread(load, url.removesuffix("/v1"), api_key="s3cret")
    message = await asyncio.to_thread(load, "http://user:pa55@127.0.0.1:9/v1")
    assert "ends in /v1" in message or "end in /v1" in message
    assert "pa55" not in message
    await server.stop()


async def test_a_key_that_stops_working_is_final_and_never_shown(tiny_tokenizer: Path) -> None:
    server = stand_in(api_key="s3cret")
    async with served(tiny_tokenizer, server, api_key="s3cret") as policy:
        server.api_key = "changed"
        with pytest.raises(EngineError, match="refuses the key") as raised:
            await policy.sample(request())
    assert "s3cret" not in str(raised.value)


async def test_servers_of_different_models_are_no_policy(tiny_tokenizer: Path) -> None:
    with pytest.raises(EngineError, match="must serve the same model"):
        async with served(tiny_tokenizer, stand_in(), stand_in(context_length=99)):
            pass


async def test_a_problem_stays_with_its_server_until_that_one_fails(tiny_tokenizer: Path) -> None:
    servers = [stand_in() for _ in range(3)]
    async with served(tiny_tokenizer, *servers) as policy:
        asked = [replace(request(i % 12), seed=k, index=k) for k in range(5) for i in range(12)]
        first = await asyncio.gather(*(policy.sample(r) for r in asked))
        homes = [set(server.sessions) for server in servers]
        assert sum(len(h) for h in homes) == len(set.union(*homes)) == 12
        assert all(len(h) > 0 for h in homes)
        # One server dies: its problems go to the others with the same seeds, the rows stay.
        servers[0].fault = lambda body, number: "drop"
        assert await asyncio.gather(*(policy.sample(r) for r in asked)) == first


async def test_back_pressure_holds_requests_in_flight_to_the_limit(tiny_tokenizer: Path) -> None:
    server = stand_in(delay_s=0.01)
    async with served(tiny_tokenizer, server, max_in_flight=7) as policy:
        await asyncio.gather(*(policy.sample(request(i)) for i in range(60)))
    assert server.most_in_flight == 7


async def test_cancelling_breaks_the_connection_so_that_the_engine_stops(tiny_tokenizer: Path) -> None:
    server = stand_in(fault=lambda body, number: "hang")
    async with served(tiny_tokenizer, server, max_in_flight=1) as policy:
        task = asyncio.create_task(policy.sample(request()))
        while not server.requests:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.fault = lambda body, number: None
        # The only place is free again.
        assert (await asyncio.wait_for(policy.sample(request(1)), 5)).outcome is None


async def test_a_completion_is_cut_at_a_stop_string_that_a_server_overlooked(tiny_tokenizer: Path) -> None:
    server = stand_in(num_tokens=12)
    async with served(tiny_tokenizer, server) as policy:
        whole = await policy.sample(request())
        starts = policy.tokenizer.offsets(whole.token_ids)
        at = next(i for i in range(2, len(whole.text)) if whole.text[i].isascii() and i in starts)
        stopped = await policy.sample(request(stop=(whole.text[at],)))
    assert stopped.finish_reason is FinishReason.STOP
    assert len(stopped.token_ids) <= at + 1


async def test_what_cannot_be_served_is_refused_before_it_is_sent(tiny_tokenizer: Path) -> None:
    server = stand_in(context_length=6)
    async with served(tiny_tokenizer, server) as policy:
        with pytest.raises(EngineError, match=r"p0.*6 tokens do not fit"):
            await policy.sample(request())
    assert server.requests == []


@pytest.mark.slow
@pytest.mark.alone
async def test_ten_thousand_requests_in_flight_leak_nothing(tiny_tokenizer: Path) -> None:
    import os
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Each request in flight holds a file descriptor here and one at the stand-in, which runs in this process.
    count = min(10_000, (hard - 500) // 2)
    descriptors = len(os.listdir("/proc/self/fd"))
    server = stand_in(keep_bodies=False, delay_s=2.0)
    async with served(tiny_tokenizer, server, max_in_flight=count, deadline_s=300) as policy:
        rollouts: list[Rollout] = await asyncio.gather(
            *(policy.sample(request(i % 200)) for i in range(count))
        )
        assert all(r.outcome is None for r in rollouts)
    assert server.most_in_flight > 0.5 * count
    for _ in range(120):  # the stand-in closes its own ends when it gets to it
        await asyncio.sleep(0.5)
        if len(os.listdir("/proc/self/fd")) <= descriptors + 5:
            break
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 5
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
