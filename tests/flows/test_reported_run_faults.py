"""Public fault reports on engines, as a whole run meets them, each with its right value."""

import asyncio
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepward.flows import label as label_module
from stepward.flows.build import build_engines
from stepward.flows.config import LabelConfig
from stepward.flows.label import label
from stepward.labeling.policies.vllm_server import load_vllm_server
from stepward.prm.dataset.store import open_dataset
from stepward.prm.errors import EngineError


def stand_in() -> Any:
    name = "stepward_tests_stand_in_server"
    if name not in sys.modules:
        path = Path(__file__).parents[1] / "labeling" / "stand_in_server.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name].StandIn(obeys=True, num_tokens=20, context_length=512)


@pytest.fixture
def config(tmp_path) -> LabelConfig:
    problems = [{"id": f"q{i}", "question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(4)]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, problems)) + "\n")
    log = [{"problem_id": p["id"], "text": f"We add.\nThe answer is {p['answer']}."} for p in problems]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, log)) + "\n")
    return LabelConfig(
        problems=str(tmp_path / "problems.jsonl"), out=tmp_path / "out", policy=f"replay:{tmp_path / 'log.jsonl'}",
        num_solutions=1, allocation="none", labeler="math_shepherd", shard_problems=2, sampler={"max_tokens": 20},
    )  # fmt: skip


def test_p067_a_resumed_run_keeps_finished_rollouts_although_the_engine_would_now_answer_otherwise(
    config, monkeypatch
):
    real = label_module.annotate

    async def dies(problem, *rest, **options):
        if problem.id == "q2":
            await asyncio.sleep(0.05)
            raise EngineError("the engine is gone")
        return await real(problem, *rest, **options)

    async def otherwise(problem, *rest, **options):
        result = await real(problem, *rest, **options)
        rollouts = tuple((key, replace(r, text="another text")) for key, r in result.rollouts)
        return replace(result, rollouts=rollouts)

    monkeypatch.setattr(label_module, "annotate", dies)
    with pytest.raises(EngineError):
        asyncio.run(label(config))
    monkeypatch.setattr(label_module, "annotate", otherwise)
    asyncio.run(label(config, resume=True))
    texts = {r.problem_id: r.text for _, r in open_dataset(config.out).rollouts()}
    kept = {p for p, text in texts.items() if text != "another text"}
    # q0, q1 and q3 were finished before the engine died; only q2 was sampled again.
    assert kept == {"q0", "q1", "q3"}
    # Nor is a finished dataset overwritten by running again: it is refused, or, told to resume, left as it is.
    asyncio.run(label(config, resume=True))
    assert {r.problem_id: r.text for _, r in open_dataset(config.out).rollouts()} == texts


async def test_p081_an_engine_that_never_answers_ends_the_run_in_time_and_leaves_it_resumable(
    config, tmp_path
):
    server = stand_in()
    hanging = True
    server.fault = lambda body, number: "hang" if hanging else None
    url = await server.start()
    checkpoint = Path(label_module.__file__).parents[1] / "labeling" / "policies" / "embedded_checkpoint"

    async def policy(**options: Any):
        return await asyncio.to_thread(
            load_vllm_server, url, tokenizer=checkpoint, pause_s=0.01, deadline_s=0.2, most_tries=2, **options
        )

    async def run(**options: Any):
        engine = await policy()
        engines = replace(build_engines(config), policy=engine, completer=engine)
        render = engine.tokenizer.encode
        engines = replace(engines, render=lambda problem: (1, *render(problem.text + "\n")))
        try:
            return await label(config, engines=engines, **options)
        finally:
            await engine.close()

    with pytest.raises(EngineError, match=r"no answer within 0\.2 s"):
        await asyncio.wait_for(run(), 20)
    log = [json.loads(line) for line in (config.out / "run_metrics.jsonl").read_text().splitlines()]
    assert log[-1]["event"] == "stopped"
    hanging = False
    progress = await asyncio.wait_for(run(resume=True), 20)
    await server.stop()
    assert progress.problems == 4
    assert len(open_dataset(config.out)) == 4
