"""The client benchmark measures what it says: a run of it in small, against its own stand-in in another process."""

import asyncio
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(ROOT))
    try:
        return importlib.import_module("benchmarks.engines_client")
    finally:
        sys.path.remove(str(ROOT))


@pytest.mark.slow
@pytest.mark.alone
def test_memory_stays_flat_and_descriptors_come_back_over_thirty_thousand_rollouts(bench: ModuleType) -> None:
    rows = asyncio.run(bench.flat_memory(30_000, in_flight=500))
    assert [r.met for r in rows if r.goal is not None] == [True, True, True]


@pytest.mark.slow
@pytest.mark.alone
def test_a_thousand_sequences_in_flight_cost_the_client_little(bench: ModuleType) -> None:
    # Sixty microseconds a token are the goal at the length of a short rollout.
    row = asyncio.run(bench.cpu_per_token(30, requests=5000))
    assert row.met


def test_the_stand_ins_answers_are_whole_and_hold_the_prompt(bench: ModuleType) -> None:
    import json

    before, after = bench._answers(8)[3]
    answer = json.loads(before + b"[5,6,7]" + after)
    (choice,) = answer["choices"]
    assert len(choice["token_ids"]) == 8 == answer["usage"]["completion_tokens"]
    assert choice["prompt_token_ids"] == [5, 6, 7]
