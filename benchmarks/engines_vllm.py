"""The part of ``benchmarks.engines`` that runs in vLLM's interpreter: prints one line of JSON.

PYTHONPATH=src:. VLLM_PYTHON -m benchmarks.engines_vllm FOLDER [--problems 12] [--max-tokens 100]
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.labelling_share import (
    Clock,
    Recorder,
    in_flight_at_most,
    label_all,
    problems_to_label,
)
from stepward.labeling.policies.prefix_ceiling import CacheCeiling
from stepward.labeling.policies.vllm import engine_prompt, load_vllm, sampling_params
from stepward.prm.policy import SampleRequest

BLOCK_SIZE = 32


async def measure(
    folder: Path, problems: int, max_tokens: int, in_flight: int, rounds: int, seed_trials: int
) -> dict[str, Any]:
    """Rounds of labelling, raw and raw without seeds, each from an empty prefix cache."""
    policy = load_vllm(
        folder,
        dtype="float32",
        enforce_eager=True,
        block_size=BLOCK_SIZE,
        max_in_flight=in_flight,
        max_model_len=1024,
    )
    given = problems_to_label(problems)
    recorder = Recorder(policy)
    await label_all(policy, given[:2], max_tokens)  # starts the engine
    engine, _ = policy._engine._living()
    number = 0

    async def raw(seeded: bool, request: SampleRequest) -> int:
        nonlocal number
        number += 1
        asked_for = request if seeded else replace(request, seed=None)  # type: ignore[arg-type]
        params = sampling_params(asked_for, policy.tokenizer, policy.context_length)
        count = 0
        prompt = engine_prompt(list(request.prefix.token_ids))
        async for output in engine.generate(prompt, params, f"raw-{number}"):
            count = len(output.outputs[0].token_ids)
        return count

    asked: list[SampleRequest] = []
    most = 0

    async def labelled() -> int:
        nonlocal asked, most
        recorder.requests, recorder.ceiling, recorder.most_in_flight = [], CacheCeiling(BLOCK_SIZE), 0
        tokens = await label_all(recorder, given, max_tokens)  # type: ignore[arg-type]
        asked, most = recorder.requests, min(in_flight, recorder.most_in_flight)
        return tokens

    async def seeded() -> int:
        return await in_flight_at_most(most, asked, lambda r: raw(True, r))

    async def unseeded() -> int:
        return await in_flight_at_most(most, asked, lambda r: raw(False, r))

    runs: dict[str, Callable[[], Awaitable[int]]] = {"ours": labelled, "raw": seeded, "unseeded": unseeded}
    cpu: dict[str, list[float]] = {k: [] for k in runs}
    wall: dict[str, list[float]] = {k: [] for k in runs}
    undisturbed: dict[str, list[float]] = {k: [] for k in runs}
    client: dict[str, list[float]] = {k: [] for k in runs}
    hits: list[float] = []
    for _ in range(rounds):
        for name, run in runs.items():
            await engine.reset_prefix_cache()
            cached, prompted = policy.usage.cached_tokens, policy.usage.prompt_tokens
            clock, own, queued = Clock(), time.process_time(), waited_for_a_core_s()
            tokens = await run()
            rates = clock.rates(tokens)
            queued = waited_for_a_core_s() - queued
            undisturbed[name].append(tokens / (tokens / rates[1] - queued))
            client[name].append((time.process_time() - own) / tokens * 1e6)
            cpu[name].append(rates[0])
            wall[name].append(rates[1])
            print(name, tokens, *rates, undisturbed[name][-1], client[name][-1], file=sys.stderr, flush=True)
            if name == "ours":
                prompted = policy.usage.prompt_tokens - prompted
                assert recorder.ceiling is not None
                possible = recorder.ceiling.possible_tokens
                hits.append((policy.usage.cached_tokens - cached) / possible if possible else 1.0)
    equal = await same_at_any_batch(policy, engine, asked[:seed_trials], most)
    await policy.close()
    return {
        "vllm": policy.version,
        "same_ids_alone_and_in_batches": equal,
        "rollouts": len(asked),
        "in_flight": most,
        "cpu": {k: statistics.median(v) for k, v in cpu.items()},
        "wall": {k: statistics.median(v) for k, v in wall.items()},
        "undisturbed": {k: statistics.median(v) for k, v in undisturbed.items()},
        "client_us_a_token": {k: statistics.median(v) for k, v in client.items()},
        "all": {"cpu": cpu, "wall": wall, "undisturbed": undisturbed},
        "hit_rate_of_possible": min(hits),
        "possible_share_of_prompt_tokens": possible / prompted,
    }


def waited_for_a_core_s() -> float:
    """Seconds that vLLM's engine could have run but others had the cores: its share of the wall that is not its own.

    The engine is the child with most CPU, and works in its main thread.
    """
    found = [(0, 0)]
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        ran, waited, _ = map(int, Path(f"/proc/{child}/task/{child}/schedstat").read_text().split())
        found.append((ran, waited))
    return max(found)[1] / 1e9


async def same_at_any_batch(
    policy: Any, engine: Any, asked: list[SampleRequest], most: int
) -> dict[str, float]:
    """Share of rollouts with the ids that they have alone, by rollouts in flight; both from empty prefix caches."""

    async def ids_at(count: int) -> list[Any]:
        gate = asyncio.Semaphore(count)
        await engine.reset_prefix_cache()

        async def one(request: SampleRequest) -> Any:
            async with gate:
                return (await policy.sample(request)).token_ids

        return await asyncio.gather(*(one(r) for r in asked))

    alone = await ids_at(1)
    shares: dict[str, float] = {}
    for count in (1, 8, most):
        shares[str(count)] = sum(a == b for a, b in zip(alone, await ids_at(count), strict=True)) / len(alone)
    return shares


def main() -> None:
    # Labelling needs scipy, which vLLM does not bring: after vLLM's own packages, those of Stepward's environment.
    sys.path.append(os.environ.get("STEPWARD_SITE", ""))
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed-trials", type=int, default=200)
    options = vars(parser.parse_args())
    print(json.dumps(asyncio.run(measure(**options))))


if __name__ == "__main__":
    main()
