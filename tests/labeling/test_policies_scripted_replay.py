"""Known continuations and logged rollouts, and policies by name."""

import asyncio
import gzip
import json
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from stepward.labeling.policies import registry
from stepward.labeling.policies.registry import load_policy, policy_names
from stepward.labeling.policies.replay import LoggedRollout, ReplayPolicy, load_replay, replay_policy
from stepward.labeling.policies.scripted import ScriptedPolicy, scripted_policy
from stepward.prm.errors import ConfigError, EngineError, ProblemFileError, ReplayExhausted
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.tokenizer import ByteTokenizer
from stepward.prm.types import FinishReason, Outcome, Prefix, Sampler

ROOT = Prefix("p1", tuple(b"Q"))


def request(
    seed: int, *, so_far: str = "", sampler: Sampler | None = None, problem: str = "p1"
) -> SampleRequest:
    prefix = Prefix(problem, tuple(b"Q"), ByteTokenizer().encode(so_far), 1 if so_far else 0)
    return SampleRequest(prefix, sampler or Sampler(), seed)


async def test_a_table_answers_by_the_solution_so_far_and_the_seed() -> None:
    policy = scripted_policy({"": ["one", "two"], "one": [" more"]})
    assert isinstance(policy, Policy)
    texts = {seed: (await policy.sample(request(seed))).text for seed in range(20)}
    assert set(texts.values()) == {"one", "two"}
    # The same seed gives the same text in any order, from a fresh policy too.
    again = scripted_policy({"": ["one", "two"]})
    assert {s: (await again.sample(request(s))).text for s in reversed(range(20))} == texts
    assert (await policy.sample(request(3, so_far="one"))).text == " more"
    with pytest.raises(EngineError, match=r"p1.*no continuation"):
        await policy.sample(request(3, so_far="three"))


async def test_a_script_is_cut_as_a_model_would_be() -> None:
    policy = scripted_policy(lambda problem_id, so_far, seed: "a step\n\nand another")
    stopped = await policy.sample(request(1, sampler=Sampler(stop=("\n\n",))))
    assert (stopped.text, stopped.finish_reason) == ("a step\n\n", FinishReason.STOP)
    short = await policy.sample(request(1, sampler=Sampler(max_tokens=4)))
    assert (short.text, short.finish_reason) == ("a st", FinishReason.LENGTH)
    # A stop string that would come after the limit stops nothing.
    both = await policy.sample(request(1, sampler=Sampler(max_tokens=7, stop=("\n\n",))))
    assert both.finish_reason is FinishReason.LENGTH
    whole = await policy.sample(request(1))
    assert whole.token_ids == tuple(b"a step\n\nand another")


async def test_an_empty_completion_is_a_completion() -> None:
    rollout = await scripted_policy({"": [""]}).sample(request(1))
    assert (rollout.token_ids, rollout.text, rollout.finish_reason) == ((), "", FinishReason.STOP)


async def test_an_engine_fault_in_a_script_is_an_error_and_never_wrong() -> None:
    def failing(problem_id: str, so_far: str, seed: int) -> str:
        raise EngineError("killed", retryable=seed == 1)

    policy = scripted_policy(failing)
    rollout = await policy.sample(request(1))
    assert (rollout.outcome, rollout.error) == (Outcome.ERROR, "killed")
    with pytest.raises(EngineError):
        await policy.sample(request(2))
    with pytest.raises(EngineError, match="no probabilities"):
        await policy.loglikelihood(ROOT, (65,))


def log(n: int, prefix: str = "", problem: str = "p1") -> list[LoggedRollout]:
    return [LoggedRollout(problem, prefix, f"{prefix or 'root'} {i}") for i in range(n)]


async def test_rollouts_are_drawn_without_replacement_and_exhaustion_is_reported() -> None:
    policy = replay_policy([*log(5), *log(2, "step 1\n")])
    assert isinstance(policy, Policy)
    texts = [(await policy.sample(request(s))).text for s in range(5)]
    assert sorted(texts) == [f"root {i}" for i in range(5)]
    with pytest.raises(ReplayExhausted, match="p1: all 5 logged"):
        await policy.sample(request(5))
    # A request that is repeated, as after a retry, draws nothing new.
    assert (await policy.sample(request(2))).text == texts[2]
    assert policy.remaining("p1") == 0
    assert policy.remaining("p1", "step 1\n") == 2
    assert (await policy.sample(request(9, so_far="step 1\n"))).text.startswith("step 1")
    with pytest.raises(ReplayExhausted, match="no rollout at prefix 1"):
        await policy.sample(request(9, so_far="step 2\n"))
    with pytest.raises(ReplayExhausted, match="p2"):
        await policy.sample(request(0, problem="p2"))


async def test_the_replay_seed_chooses_the_order_and_nothing_else_does() -> None:
    async def order(policy: ReplayPolicy, problem: str = "p1") -> list[str]:
        return [
            r.text
            for r in await asyncio.gather(*(policy.sample(request(s, problem=problem)) for s in range(8)))
        ]

    both = [*log(8), *log(8, problem="p2")]
    first = await order(replay_policy(both))
    assert await order(replay_policy(both)) == first
    assert first != [f"root {i}" for i in range(8)]
    assert await order(replay_policy(both, seed=1)) != first
    # Another problem drawn before changes nothing.
    policy = replay_policy(both)
    await order(policy, "p2")
    assert await order(policy) == first


async def test_a_log_is_replayed_as_it_ended() -> None:
    cut = LoggedRollout("p1", "", "a long text", FinishReason.LENGTH, logprobs=tuple([-0.5] * 11))
    policy = replay_policy([cut])
    rollout = await policy.sample(replace(request(1, sampler=Sampler(max_tokens=2)), want_logprobs=True))
    assert (rollout.text, rollout.finish_reason) == ("a long text", FinishReason.LENGTH)
    assert rollout.logprobs == tuple([-0.5] * 11)
    assert rollout.outcome is None


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
async def test_a_log_file_is_read(tmp_path: Path, name: str) -> None:
    rows = [
        {"problem_id": "p1", "text": "solution\u2028with a line separator"},
        {"problem_id": "p1", "prefix": "a\n", "text": "b", "finish_reason": "length", "token_ids": [98]},
    ]
    data = ("\n".join(json.dumps(r, ensure_ascii=False) for r in rows) + "\n\n").encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    policy = load_replay(tmp_path / name)
    assert (await policy.sample(request(1))).text == "solution\u2028with a line separator"
    assert (await policy.sample(request(1, so_far="a\n"))).finish_reason is FinishReason.LENGTH
    assert policy.info.name == name
    assert len(policy.info.revision) == 16


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "one JSON object"),
        ('{"problem_id": "p"}', "text is None"),
        ('{"problem_id": 3, "text": ""}', "problem_id is 3"),
        ('{"problem_id": "p", "text": "", "finish_reason": "abort"}', "'abort'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"problem_id": "p", "text": "t"}\n' + line + "\n")
    with pytest.raises(ProblemFileError, match=says) as raised:
        load_replay(path)
    assert raised.value.line == 2
    with pytest.raises(ProblemFileError, match="cannot be read"):
        load_replay(tmp_path / "none.jsonl")


def test_policies_are_found_by_name(tiny_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"problem_id": "p", "text": "t"}\n')
    assert load_policy(f"replay:{tmp_path}/log.jsonl", seed=3).info.engine == "replay"
    for spec in (str(tiny_checkpoint), f"transformers:{tiny_checkpoint}"):
        assert load_policy(spec, batch_size=4).info.engine == "transformers"
    assert {"embedded", "replay", "transformers", "vllm", "vllm_server", "openai"} <= set(policy_names())


@pytest.mark.parametrize(
    ("spec", "options", "says"),
    [
        ("replay", {}, "needs an argument"),
        ("embedded:x", {}, "takes no argument"),
        ("embedded", {"batchsize": 3}, "batchsize"),
    ],
)
def test_a_name_used_wrongly_is_a_config_error(spec: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_policy(spec, **options)


def test_other_packages_bring_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "stepward.labeling.policies.scripted:scripted_policy", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    policy = load_policy("mine", script={"": ["x"]})
    assert isinstance(policy, ScriptedPolicy)
    assert "mine" in policy_names()
