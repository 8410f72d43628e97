"""A run's log and figures: what happened to which problem, how fast, and what should worry somebody."""

import asyncio
import errno
import json
import os
import socket
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepward.flows import label as label_module
from stepward.flows.config import LabelConfig
from stepward.flows.label import label
from stepward.flows.watching.observe import RunObserver, metered
from stepward.flows.watching.prometheus import exporter
from stepward.flows.watching.run_metrics import WINDOW, RunMetrics, Share, alarms
from stepward.labeling.annotate import ProblemResult
from stepward.labeling.plan import Engines
from stepward.labeling.policies.metered import Meter, MeteredPolicy
from stepward.labeling.policies.scripted import scripted_policy
from stepward.prm.errors import ConfigError, EngineError
from stepward.prm.policy import Policy, SampleRequest
from stepward.prm.types import FinishReason, Outcome, Prefix, Problem, Rollout, Sampler


@pytest.fixture
def config(tmp_path) -> LabelConfig:
    """Five sums, each with one logged solution of two lines and two logged rollouts after the first line."""
    problems, log = [], []
    for i in range(5):
        problems.append({"id": f"sum-{i}", "question": f"What is {i} + {i}?", "answer": str(2 * i)})
        lines = [f"We add {i} and {i}.\n", f"The answer is {2 * i}."]
        log.append({"problem_id": f"sum-{i}", "text": "".join(lines)})
        log += [{"problem_id": f"sum-{i}", "prefix": lines[0], "text": t} for t in (lines[1], "It is 1000.")]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, problems)) + "\n")
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, log)) + "\n")
    return LabelConfig(
        problems=str(tmp_path / "problems.jsonl"), out=tmp_path / "out", policy=f"replay:{tmp_path / 'log.jsonl'}",
        num_solutions=1, allocation="fixed_k", num_rollouts=2, labeler="math_shepherd", shard_problems=2,
    )  # fmt: skip


def events(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run_metrics.jsonl").read_text().splitlines()]


def test_every_problem_and_shard_of_a_run_is_in_its_log(config):
    asyncio.run(label(config))
    log = events(config.out)
    run = json.loads((config.out / "manifest.json").read_text())["run_id"]
    assert {line["run"] for line in log} == {run}
    assert [line["event"] for line in log][0 :: len(log) - 1] == ["started", "stopped"]
    by_problem = {line["problem"]: line for line in log if line["event"] == "problem"}
    # problems 0 and 1 are shard 0, 2 and 3 shard 1, 4 shard 2
    assert {p: line["shard"] for p, line in by_problem.items()} == {f"sum-{i}": i // 2 for i in range(5)}
    # the solution and one rollout are right, the other rollout is wrong
    assert by_problem["sum-3"]["outcomes"] == {"right": 2, "wrong": 1}
    assert sorted(line["shard"] for line in log if line["event"] == "shard") == [0, 1, 2]
    assert log[-1]["how"] == "finished"


def test_the_figures_of_a_run_are_in_its_folder(config):
    asyncio.run(label(config))
    figures = json.loads((config.out / "run_metrics.json").read_text())
    assert (figures["problems"], figures["problems_planned"], figures["shards"]) == (5, 5, 3)
    # 3 draws a problem: 2 right, 1 wrong; all finished by themselves
    assert figures["outcome_shares"] == {"right": round(2 / 3, 4), "wrong": round(1 / 3, 4)}
    assert figures["finish_reasons"] == {"stop": 15}
    assert figures["solve_rate"] == 1.0
    assert figures["fault_share"] == 0.0
    # one repeated draw a problem, and it brought a new text
    assert figures["n_unique_share"] == 1.0
    assert figures["in_flight"] == 0
    assert figures["prefix_hit_rate"] is None
    assert figures["warnings"] == []


def test_a_run_that_fails_says_in_its_log_which_shard_and_why(config, monkeypatch):
    real = label_module.annotate

    async def dies(problem, *rest, **options):
        if problem.id == "sum-2":
            raise EngineError("the engine is gone, Bearer abc123")
        return await real(problem, *rest, **options)

    monkeypatch.setattr(label_module, "annotate", dies)
    with pytest.raises(EngineError):
        asyncio.run(label(config))
    log = events(config.out)
    stopped = next(line for line in log if line["event"] == "shard_stopped" and "gone" in line["why"])
    assert stopped["shard"] == 1
    assert log[-1]["how"] == "EngineError"
    assert "abc123" not in (config.out / "run_metrics.jsonl").read_text(), "keys are scrubbed"
    monkeypatch.setattr(label_module, "annotate", real)
    asyncio.run(label(config, resume=True))
    assert [x["event"] for x in events(config.out)].count("started") == 2, (
        "a resumed run goes on in the same log"
    )


def test_overwriting_a_dataset_starts_its_log_anew(config):
    asyncio.run(label(config))
    asyncio.run(label(config, overwrite=True))
    assert [line["event"] for line in events(config.out)].count("started") == 1


def test_a_log_that_cannot_be_written_stops_no_run(config, monkeypatch):
    def full(handle: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert asyncio.run(label(config)).problems == 5


def request(i: int = 0) -> SampleRequest:
    return SampleRequest(Prefix("p", (1, 2, 3), (4,), 1), Sampler(), i, i)


async def test_a_meter_knows_what_is_in_flight_and_for_how_long():
    gate = asyncio.Event()
    inner = scripted_policy(lambda problem, so_far, seed: "12345")

    class Slow:
        info, tokenizer = inner.info, inner.tokenizer
        context_length, deterministic = 100, True

        async def sample(self, asked: SampleRequest) -> Rollout:
            await gate.wait()
            return await inner.sample(asked)

        async def loglikelihood(self, prefix: Prefix, continuation: tuple[int, ...]) -> tuple[float, ...]:
            return (0.0,) * len(continuation)

        async def close(self) -> None:
            return

    meter = Meter()
    policy = MeteredPolicy(Slow(), meter)
    assert isinstance(policy, Policy)
    tasks = [asyncio.create_task(policy.sample(request(i))) for i in range(3)]
    await asyncio.sleep(0.02)
    began = meter.began
    assert began is not None
    assert meter.in_flight == 3
    assert meter.queue_age_s(began + 5.0) == pytest.approx(5.0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert meter.in_flight == 2
    gate.set()
    await asyncio.gather(*tasks[1:])
    assert (meter.in_flight, meter.finished, meter.refused) == (0, 2, 1)
    # two rollouts of five bytes; three prefixes of four tokens were sent
    assert (meter.tokens, meter.prompt_tokens) == (10, 12)
    assert meter.queue_age_s(began + 9) == 0.0
    assert meter.tokens_per_s(began + 2.0) == pytest.approx(5.0, rel=0.1)
    assert meter.tokens_per_s(began + 1000.0) == 0.0, "an old minute is no rate"


def test_a_watched_engine_still_says_what_it_is(config):
    from stepward.flows.build import build_engines, build_labeling
    from stepward.labeling.evidence import LabelingConstants

    class Versioned:
        version, folder, usage = "vllm 0.32.0", Path("somewhere"), None

    inner = Versioned()
    policy = MeteredPolicy(inner, Meter())  # type: ignore[arg-type]
    assert (policy.version, policy.folder, policy.usage) == ("vllm 0.32.0", Path("somewhere"), None)
    engines, _ = metered(build_engines(config))
    assert build_labeling(config, LabelingConstants(), engines).manifest.policy.engine == "replay"
    assert engines.completer is engines.policy, "one engine stays one"


def result(i: int, outcomes: list[Outcome], texts: list[str]) -> ProblemResult:
    """A problem with rollouts at one prefix."""
    rollouts = tuple(
        ("s", Rollout(f"p{i}", 1, k, k, (1,), text, FinishReason.STOP, outcome=o))
        for k, (o, text) in enumerate(zip(outcomes, texts, strict=True))
    )
    return ProblemResult(Problem(f"p{i}", "?"), (), rollouts, len(rollouts))


R, W, E = Outcome.RIGHT, Outcome.WRONG, Outcome.ERROR


def fed(metrics: RunMetrics, number: int, outcomes: list[Outcome], texts: list[str]) -> set[str]:
    for i in range(number):
        metrics.add(result(i, outcomes, texts))
    return {a.name for a in alarms(metrics)}


def test_a_steady_run_raises_no_alarm():
    assert fed(RunMetrics(Meter()), 300, [R, W, R, W], ["a", "b", "c", "d"]) == set()


def test_a_rising_share_of_engine_faults_is_an_alarm_and_an_early_large_one_too():
    metrics = RunMetrics(Meter())
    assert fed(metrics, 100, [R, W, R, W], ["a", "b", "c", "d"]) == set()
    # 200 of the last 200 draws hold 50 faults: 25 %, none before
    assert fed(metrics, 50, [R, W, R, E], ["a", "b", "c", ""]) == {"engine_faults"}
    assert fed(metrics, 200, [R, W, R, W], ["a", "b", "c", "d"]) == set(), "it ends with its cause"
    assert fed(RunMetrics(Meter()), 50, [R, W, R, E], ["a", "b", "c", ""]) == {"engine_faults"}


def test_texts_that_stop_being_new_are_an_alarm():
    metrics = RunMetrics(Meter())
    assert fed(metrics, 100, [R, W, R, W], ["a", "b", "c", "d"]) == set()
    assert fed(metrics, 80, [R, R, R, R], ["a", "a", "a", "a"]) == {"n_unique"}
    assert fed(RunMetrics(Meter()), 80, [R, R, R, R], ["a", "a", "a", "a"]) == {"n_unique"}


def test_a_solve_rate_that_drifts_is_an_alarm_and_chance_is_none():
    metrics = RunMetrics(Meter())
    for share in (0.5, 0.5, 0.55):
        metrics.drift.add(int(WINDOW * share), WINDOW)
    assert alarms(metrics) == []
    metrics.drift.add(int(WINDOW * 0.2), WINDOW)
    # 20 % of 200 against 51.7 % of 600: pooled .4375, se .0405, z = -7.8
    assert [a.name for a in alarms(metrics)] == ["solve_rate"]
    assert metrics.drift.change_z() == pytest.approx(-7.8, abs=0.1)


def test_what_ends_first_within_a_shard_is_no_drift():
    metrics = RunMetrics(Meter())
    for shard in range(4):  # in each the right ones end first
        for outcome in [R] * 100 + [W] * 100:
            made = SimpleNamespace(solution=SimpleNamespace(outcome=outcome), marks=())
            metrics.add(replace(result(shard, [outcome], ["a"]), solutions=(made,)), shard)
        assert [a.name for a in alarms(metrics) if a.name == "solve_rate"] == []
        metrics.close(shard)
    assert [a.name for a in alarms(metrics) if a.name == "solve_rate"] == []
    assert metrics.solved.share == metrics.drift.share == 0.5
    assert metrics.shards == 4


def test_a_share_keeps_its_window_and_what_lay_before_it():
    share = Share()
    assert share.recent is None
    for _ in range(3):
        share.add(100, 200)
    share.add(0, 100)
    # the window holds the last 200 or more: 100 of 200, and 0 of 100; 200 of 400 lie before
    assert (share.recent_hits, share.recent_total) == (100, 300)
    assert share.earlier == 0.5
    assert share.share == pytest.approx(300 / 700)


def observed(folder: Path, **options) -> RunObserver:
    engines, meter = metered(Engines(*[scripted_policy(lambda p, s, seed: "x")] * 2, lambda p: (1,), None))
    return RunObserver(folder, "run-1", engines, meter, **options)


async def test_an_alarm_is_said_once_until_it_has_been_quiet(tmp_path, caplog):
    async with observed(tmp_path) as seen:
        for _ in range(3):
            for i in range(60):
                seen.problem(0, result(i, [R, W, R, E], ["a", "b", "c", ""]))
        assert seen.state()["warnings"] == ["engine_faults"]
        for i in range(300):
            seen.problem(1, result(i, [R, W, R, W], ["a", "b", "c", "d"]))
        assert seen.state()["warnings"] == []
    warnings = [x for x in events(tmp_path) if x["event"] == "warning"]
    assert [x["warning"] for x in warnings] == ["engine_faults"]
    assert warnings[0]["remedy"]
    assert len(caplog.records) == 1


async def test_the_figures_are_written_while_nothing_finishes(tmp_path):
    async with observed(tmp_path, every_s=0.02, part="2of3"):
        for _ in range(100):
            await asyncio.sleep(0.02)
            if (tmp_path / "run_metrics.2of3.json").is_file():
                break
        figures = json.loads((tmp_path / "run_metrics.2of3.json").read_text())
    assert figures["part"] == "2of3"
    assert figures["problems"] == 0


async def test_prometheus_reads_the_figures_on_the_loopback_alone(tmp_path):
    pytest.importorskip("prometheus_client", reason="the endpoint needs prometheus_client")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with observed(tmp_path, exporter=exporter(port), every_s=0.02) as seen:
        seen.begin(9, 2)
        seen.problem(0, result(0, [R, W], ["a", "b"]))
        while not seen._latest["problems"]:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{port}/metrics"
        text = (await asyncio.to_thread(urllib.request.urlopen, url)).read().decode()
        with pytest.raises(ConfigError, match="cannot be listened on"):
            exporter(port)(seen.state)
    assert 'stepward_problems_planned{part="",run="run-1"} 9.0' in text
    assert 'stepward_problems_total{part="",run="run-1"} 1.0' in text
    assert 'stepward_outcome_share{outcome="right",part="",run="run-1"} 0.5' in text
    assert "prefix_hit_rate" not in text, "what is not known is left out"
    with pytest.raises(OSError):  # noqa: PT011 (any refusal will do)
        await asyncio.to_thread(urllib.request.urlopen, url)


def test_a_prefix_cache_that_drops_what_is_needed_is_an_alarm():
    class Decoder:
        prefilled_tokens, prefilled_again = 400, 300

    meter = Meter(finished=1000, prompt_tokens=1000)
    policy = MeteredPolicy(SimpleNamespace(decoder=Decoder), meter)  # type: ignore[arg-type]
    metrics = RunMetrics(meter, (policy,))
    # of 1,000 tokens that were sent 600 were cached; 300 more would have been
    assert metrics.snapshot()["prefix_hits_of_possible"] == 0.6667
    assert [a.name for a in alarms(metrics)] == ["prefix_cache"]
    Decoder.prefilled_again = 50  # .92 of the possible
    assert alarms(metrics) == []
    Decoder.prefilled_again, meter.finished = 300, 999
    assert alarms(metrics) == []
