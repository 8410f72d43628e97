"""Text endpoints: what they cannot do is said, and drift is counted."""

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from stepward.labeling.policies.openai import OpenAIPolicy, fold_seed, load_openai
from stepward.prm.errors import EngineError
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.tokenizer import ByteTokenizer
from stepward.prm.types import FinishReason, Outcome, Prefix, Sampler


def stand_in(**options: Any) -> Any:
    name = "stepward_tests_stand_in_server"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("stand_in_server.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].StandIn(**options)


async def connected(server: Any, **options: Any) -> OpenAIPolicy:
    url = await server.start()
    return await asyncio.to_thread(load_openai, url, pause_s=0.001, deadline_s=5.0, **options)


def request(seed: int = 3, so_far: str = "", **sampler: Any) -> SampleRequest:
    encode = ByteTokenizer().encode
    prefix = Prefix("p1", encode("Frage: größer?\n"), encode(so_far), 1 if so_far else 0)
    return SampleRequest(prefix, Sampler(**{"max_tokens": 20, **sampler}), seed)


async def test_the_row_says_that_only_text_went_over_the_wire() -> None:
    server = stand_in()
    policy = await connected(server)
    assert isinstance(policy, Policy)
    assert (policy.info.engine, policy.tokenizer.hash, policy.deterministic) == (
        "openai",
        "utf8-bytes",
        False,
    )
    rollout = await policy.sample(request(so_far="Erst "))
    sent = server.requests[0]
    assert sent["prompt"] == "Frage: größer?\nErst "
    assert (sent["seed"], sent["temperature"], sent["top_p"], sent["n"]) == (3, 1.0, 1.0, 1)
    # Other makes refuse fields that they do not know.
    assert not {"top_k", "min_p", "return_token_ids", "repetition_penalty"} & set(sent)
    assert rollout.text == "".join(map(chr, server.completion(sent["prompt"], 3, 8)))
    assert rollout.token_ids == tuple(rollout.text.encode())
    await policy.close()
    await server.stop()


async def test_a_sampler_that_the_endpoint_would_not_use_is_refused() -> None:
    server = stand_in()
    policy = await connected(server)
    for sampler in ({"top_k": 5}, {"min_p": 0.1}):
        with pytest.raises(EngineError, match=r"p1.*top_k"):
            await policy.sample(request(**sampler))
    with pytest.raises(EngineError, match="no log-probabilities"):
        await policy.loglikelihood(request().prefix, (65,))
    assert server.requests == []
    await policy.close()
    await server.stop()


async def test_the_text_keeps_the_stop_string() -> None:
    server = stand_in()
    policy = await connected(server)
    whole = (await policy.sample(request())).text
    stop = whole[3:5]
    stopped = await policy.sample(request(stop=(stop,)))
    assert stopped.text == whole[: whole.find(stop) + 2]
    assert stopped.finish_reason is FinishReason.STOP
    assert "stop" not in server.requests[1]
    # max_tokens counts the endpoint's tokens: a text of more bytes than that is whole.
    short = await policy.sample(request(max_tokens=5))
    assert short.finish_reason is FinishReason.LENGTH
    assert len(short.text) == 5
    await policy.close()
    await server.stop()


@pytest.mark.parametrize("kind", ["500", "half", "drop", "abort"])
async def test_engine_faults_are_repeated_and_a_poison_request_is_an_error(kind: str) -> None:
    server = stand_in(fault=lambda body, number: kind if number == 0 or body["seed"] == 9 else None)
    policy = await connected(server, most_tries=3)
    assert (await policy.sample(request())).outcome is None
    poison, other = await asyncio.gather(policy.sample(request(9)), later(policy))
    assert (poison.outcome, other.outcome) == (Outcome.ERROR, None)
    await policy.close()
    await server.stop()


async def later(policy: OpenAIPolicy) -> Any:
    return await policy.sample(request(4))


async def test_seeds_are_folded_only_where_asked_and_no_bit_is_lost_without_a_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = stand_in()
    policy = await connected(server, seed_bits=31)
    assert "folded to 31 bits" in caplog.text
    rollout = await policy.sample(request(2**62 + 5))
    assert 0 <= server.requests[0]["seed"] < 2**31
    assert rollout.seed == 2**62 + 5
    await policy.close()
    await server.stop()
    assert fold_seed(2**63 - 1, 63) == 2**63 - 1
    # 2^62 is one bit, at 62 = 0 modulo 31; 2^40 at 9.
    assert fold_seed(2**62, 31) == 1
    assert fold_seed(2**40 + 3, 31) == 2**9 + 3


async def test_drift_is_counted_from_the_endpoints_own_token_counts() -> None:
    # The stand-in counts a character as a token, so joined text has as many tokens as prompt and completion.
    server = stand_in()
    policy = await connected(server)
    steady = await policy.check_drift([request(i) for i in range(4)])
    assert (steady.checked, steady.drifted, steady.unknown) == (4, 0, 0)
    completed = server._completed

    def merging(body: Any, fault: str | None) -> Any:
        answer = completed(body, fault)
        # An endpoint whose tokenizer joins two tokens of a longer prompt into one.
        if len(body["prompt"]) > 16:
            answer["usage"]["prompt_tokens"] -= 2
        return answer

    server._completed = merging
    drifting = await policy.check_drift([request(i) for i in range(4)])
    assert (drifting.checked, drifting.drifted) == (4, 4)
    await policy.close()
    await server.stop()
