"""Labelling with real vLLM servers that are killed in the middle: the rows are those of an undisturbed run.

Run with ``pytest -m vllm``; STEPWARD_VLLM_PYTHON names an interpreter that has vLLM. Rows can be compared because the
embedded checkpoint is so small that float32 rounding hardly ever decides a token (docs/engines.md has the shares).
"""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepward.flows.build import build_engines
from stepward.flows.config import LabelConfig, parse
from stepward.flows.label import label
from stepward.labeling.policies.embedded import embedded_folder
from stepward.labeling.policies.http_pool import Usage

pytestmark = pytest.mark.vllm

FLAGS = ("--served-model-name", "embedded", "--enable-prompt-tokens-details")


async def labelled(
    out: Path, urls: str, kill_after: int = 0, kill: Callable[[], None] = lambda: None
) -> tuple[dict[str, Any], Usage]:
    """The manifest of a run, and what its engine saw; ``kill`` is called once so many requests are answered."""
    config = parse(
        LabelConfig,
        problems="generator:12",
        out=out,
        policy=f"vllm_server:{urls}",
        num_solutions=2,
        allocation="fixed_k",
        num_rollouts=2,
        labeler="math_shepherd",
        sampler={"max_tokens": 80},
    )
    engines = await asyncio.to_thread(build_engines, config)
    policy: Any = engines.policy

    async def killer() -> None:
        while policy.usage.requests < kill_after:
            await asyncio.sleep(0.002)
        kill()

    killing = asyncio.create_task(killer())
    await label(config, engines=engines)
    await killing
    await policy.close()
    return json.loads((out / "manifest.json").read_text()), policy.usage


async def test_a_killed_server_costs_no_row_and_changes_none(start_vllm: Any, tmp_path: Path) -> None:
    folder = embedded_folder()
    first, second = start_vllm(folder, *FLAGS), start_vllm(folder, *FLAGS)
    for server in (first, second):
        await asyncio.to_thread(server.wait)
    port = int(second.root.rsplit(":", 1)[1])

    # One URL, whose server a supervisor starts again.
    want, usage = await labelled(tmp_path / "alone", second.url)
    figures = json.loads((tmp_path / "alone" / "run_metrics.json").read_text())
    assert figures["prefix_hits_of_possible"] > 0.95
    again: list[Any] = []

    def kill_and_start() -> None:
        second.signal(9)
        again.append(start_vllm(folder, *FLAGS, port=port))

    got, disturbed = await labelled(
        tmp_path / "alone-killed", second.url, usage.requests // 3, kill_and_start
    )
    assert got["fingerprint"] == want["fingerprint"]
    assert disturbed.faults.get("connect", 0) > 0
    assert "model runner" in got["constants"]["engine_versions"]["policy"]

    # Two URLs, one of which dies for good: its problems go on at the other one.
    urls = f"{first.url},{second.url}"
    want, usage = await labelled(tmp_path / "both", urls)
    got, disturbed = await labelled(
        tmp_path / "both-killed", urls, usage.requests // 3, lambda: again[0].signal(9)
    )
    assert got["fingerprint"] == want["fingerprint"]
    assert got["totals"]["solutions"] == 24
    assert sum(disturbed.faults.values()) > 0
