"""``stepward engine check``: a good engine passes, and each deliberate fault is found, with a remedy."""

import asyncio
import contextlib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stepward.labeling.policies.check.findings import Finding, State
from stepward.labeling.policies.check.run import check_engine
from stepward.labeling.policies.openai import load_openai
from stepward.labeling.policies.replay import LoggedRollout, replay_policy
from stepward.labeling.policies.scripted import scripted_policy
from stepward.labeling.policies.vllm_server import load_vllm_server
from stepward.prm.prompts import PromptTemplate, plain_template
from stepward.prm.seeds import derive_seed
from stepward.prm.types import FinishReason, Problem

PROBLEMS = [Problem(f"q{i}", f"What is {i} + {i * 7 + 1}? Add the two numbers.") for i in range(4)]
PLAIN = plain_template()


def stand_in(**options: Any) -> Any:
    name = "stepward_tests_stand_in_server"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("stand_in_server.py"))
        assert spec is not None
        assert spec.loader is not None
        module: ModuleType = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name].StandIn(**options)


def by_probe(findings: list[Finding]) -> dict[str, Finding]:
    return {f.probe: f for f in findings}


def failed(findings: list[Finding]) -> set[str]:
    assert all(f.remedy for f in findings if f.state is State.FAILED)
    return {f.probe for f in findings if f.state is State.FAILED}


async def found(
    tokenizer: Path, *unlike: str, template: PromptTemplate = PLAIN, **options: Any
) -> list[Finding]:
    """The findings on a stand-in that obeys its sampler but for the named faults."""
    settings: dict[str, Any] = {
        "obeys": True, "num_tokens": 40, "context_length": 256, "unlike": frozenset(unlike), **options,
    }  # fmt: skip
    server = stand_in(**settings)
    url = await server.start()
    policy = await asyncio.to_thread(
        load_vllm_server, url, tokenizer=tokenizer, pause_s=0.001, deadline_s=5.0, most_tries=2
    )
    try:
        return await check_engine(policy, template, PROBLEMS, num_tokens=24, deadline_s=3.0)
    finally:
        await policy.close()
        await server.stop()


async def test_a_server_that_keeps_its_word_is_fit(tiny_tokenizer: Path) -> None:
    findings = await found(tiny_tokenizer)
    assert {f.probe: f.state for f in findings} == dict.fromkeys(
        [
            "tokenizer", "prompt", "seeds: repeated", "seeds: different", "seeds: two prompts", "sampler: greedy",
            "sampler: top_k", "likelihood", "token ids", "stop strings", "finish reasons", "context", "prefix cache",
            "throughput",
        ],
        State.OK,
    )  # fmt: skip
    assert PLAIN.hash in by_probe(findings)["prompt"].what


@pytest.mark.parametrize(
    ("fault", "probe"),
    [
        ("ignores_seed", "seeds: different"),
        ("seeds_by_place", "seeds: two prompts"),
        ("ignores_temperature", "sampler: greedy"),
        ("ignores_top_k", "sampler: top_k"),
        ("scores_tempered", "likelihood"),
        ("hides_stop", "stop strings"),
    ],
)
async def test_a_fault_of_the_server_is_found_by_its_probe(
    tiny_tokenizer: Path, fault: str, probe: str
) -> None:
    assert probe in failed(await found(tiny_tokenizer, fault))


async def test_a_server_that_adds_a_start_token_is_found_by_its_own_count(tiny_tokenizer: Path) -> None:
    # Case P009: a start token on one path alone. The server counts one prompt token more than it was sent.
    findings = by_probe(await found(tiny_tokenizer, "adds_start"))
    assert findings["token ids"].state is State.FAILED
    assert "adds or cuts tokens" in findings["token ids"].remedy


async def test_a_text_endpoint_is_fit_and_what_it_does_not_offer_is_unknown() -> None:
    server = stand_in(obeys=True, num_tokens=40)
    url = await server.start()
    policy = await asyncio.to_thread(load_openai, url)
    findings = await check_engine(policy, PLAIN, PROBLEMS, num_tokens=24, deadline_s=10.0)
    await policy.close()
    await server.stop()
    assert failed(findings) == set()
    table = by_probe(findings)
    unknown = {f.probe for f in findings if f.state is State.UNKNOWN}
    assert unknown == {"sampler: top_k", "likelihood", "context", "prefix cache"}
    # The stand-in's tokens are characters: continuing from text begins from the tokens that were sampled.
    assert table["token ids"].what.startswith("a text endpoint: 0 of 8 continuations")


async def test_missing_cache_counts_are_a_warning_with_the_servers_options(tiny_tokenizer: Path) -> None:
    findings = await found(tiny_tokenizer, "counts_no_cache")
    assert failed(findings) == set()
    cache = by_probe(findings)["prefix cache"]
    assert cache.state is State.WARNING
    assert "--enable-prompt-tokens-details" in cache.remedy


async def test_a_server_that_hangs_fails_within_its_deadline(tiny_tokenizer: Path) -> None:
    # Case P081: an engine that never answers.
    server = stand_in(fault=lambda body, number: "hang", context_length=256)
    url = await server.start()
    policy = await asyncio.to_thread(load_vllm_server, url, tokenizer=tiny_tokenizer)
    findings = await check_engine(policy, PLAIN, PROBLEMS, deadline_s=0.05)
    await policy.close()
    await server.stop()
    assert "seeds" in failed(findings)
    assert "no answer within 0.05 s" in by_probe(findings)["seeds"].what


@pytest.mark.parametrize("kind", ["500", "other_prompt", "no_ids", "other_model"])
async def test_a_server_that_answers_wrongly_fails_every_probe_and_says_why(
    tiny_tokenizer: Path, kind: str
) -> None:
    findings = await found(tiny_tokenizer, fault=lambda body, number: kind)
    assert {"seeds", "throughput"} <= failed(findings)


async def test_a_template_that_drops_the_problem_fails_before_anything_is_sampled(
    tiny_tokenizer: Path,
) -> None:
    findings = await found(tiny_tokenizer, template=PromptTemplate("deaf", "Solve it.\n"))
    assert [f.probe for f in findings] == ["tokenizer", "prompt"]
    assert "statement of problem q0 is not in its prompt" in findings[-1].what


async def test_two_start_tokens_fail_before_anything_is_sampled(tmp_path: Path, tiny_tokenizer: Path) -> None:
    # Case P010: the template writes the start token and the tokenizer's post-processor adds another.
    from stepward.prm.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(tiny_tokenizer)
    doubled = replace(tokenizer, bos_id=0)
    policy = scripted_policy(lambda problem, so_far, seed: "42", tokenizer=doubled)
    findings = await check_engine(policy, PromptTemplate("twice", "<|end|><|end|>{{ problem }}"), PROBLEMS)
    assert failed(findings) == {"prompt"}
    assert "twice" in findings[-1].what


def chain(problem: str, so_far: str, seed: int) -> str:
    """A script that goes on from where it is: always the same worked answer."""
    whole = "First we add.\nThen we add again.\nThe answer is 42."
    return whole[len(so_far) :] if whole.startswith(so_far) else "The answer is 42."


async def test_a_script_with_one_answer_is_found_to_repeat_itself() -> None:
    findings = await check_engine(scripted_policy(chain, context_length=512), PLAIN, PROBLEMS)
    assert failed(findings) == {"seeds: different"}
    table = by_probe(findings)
    assert table["likelihood"].state is State.UNKNOWN
    assert table["token ids"].state is State.OK
    assert table["context"].state is State.OK


async def test_a_script_with_many_answers_has_seeds_but_no_temperature() -> None:
    def script(problem: str, so_far: str, seed: int) -> str:
        return f"We add and get {derive_seed(seed, problem) % 1000}.\nThe answer is {seed % 97}."

    assert failed(await check_engine(scripted_policy(script, context_length=512), PLAIN, PROBLEMS)) == {
        "sampler: greedy", "token ids",
    }  # fmt: skip


async def test_a_log_is_not_failed_for_what_it_does_not_hold() -> None:
    logged = [
        LoggedRollout(p.id, "", f"We add.\nThe answer is {i * 3 + len(p.id)}.", FinishReason.STOP)
        for p in PROBLEMS
        for i in range(20)
    ]
    findings = await check_engine(replay_policy(logged, name="log", revision="0"), PLAIN, PROBLEMS)
    table = by_probe(findings)
    assert failed(findings) == set()
    assert table["seeds: different"].state is State.OK
    assert {f.state for f in findings if f.probe in ("throughput", "stop strings", "context")} <= {
        State.UNKNOWN, State.OK,
    }  # fmt: skip


async def test_a_check_needs_two_different_problems() -> None:
    with pytest.raises(ValueError, match="two problems"):
        await check_engine(scripted_policy(chain), PLAIN, PROBLEMS[:1])


async def test_what_is_not_ours_passes_through() -> None:
    def broken(problem: str, so_far: str, seed: int) -> str:
        raise ZeroDivisionError("a fault of the script")

    with contextlib.suppress(ExceptionGroup), pytest.raises(ZeroDivisionError):
        await check_engine(scripted_policy(broken, context_length=512), PLAIN, PROBLEMS)


@pytest.mark.slow
async def test_the_embedded_engine_is_fit() -> None:
    from stepward.flows.build import folder_of, prompt_template
    from stepward.labeling.policies.embedded import load_embedded

    policy = load_embedded()
    try:
        findings = await check_engine(policy, prompt_template(None, folder_of(policy)), PROBLEMS)
    finally:
        await policy.close()
    assert {f.state for f in findings} == {State.OK}
