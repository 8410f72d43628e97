"""What a run would cost: scaled from a pilot, with intervals that a reader can check by hand."""

import asyncio
import json

import numpy as np
import pytest

from stepward.flows.config import LabelConfig, PricesConfig, parse
from stepward.flows.plan import Pilot, plan_labeling, scaled
from stepward.prm.errors import ConfigError


def pilot(tokens: list[float], **others: float) -> Pilot:
    """Every problem samples so many tokens; prompts are ten times that, rows two bytes a token."""
    values = np.asarray(tokens)
    per_problem = {
        "solutions": np.ones(len(tokens)),
        "rollouts": np.full(len(tokens), 4.0),
        "labelled steps": np.full(len(tokens), 3.0),
        "prompt tokens": values * 10,
        "generated tokens": values,
        "bytes": values * 2,
    }
    return Pilot(
        per_problem, np.full(10, values.sum() / 10), seconds=others.get("seconds", 10.0), shard_bytes=1000
    )


@pytest.fixture
def config(tmp_path) -> LabelConfig:
    return LabelConfig(problems="generator:1000", out=tmp_path / "out", shard_problems=50)


def test_a_pilot_without_spread_is_scaled_without_an_interval(config):
    prices = PricesConfig(million_prompt_tokens=0.5, million_generated_tokens=2.0, gpu_hour=3.0, hour=0.1)
    plan = scaled(pilot([100.0] * 20), 1000, config.model_copy(update={"gpus": 4, "prices": prices}))
    # 20 problems of 100 tokens in 10 s are 200 tokens/s; 1,000 problems are 100,000 tokens, 500 s, 0.1389 h
    assert (
        plan["generated tokens"].value == plan["generated tokens"].low == plan["generated tokens"].high == 1e5
    )
    assert plan["prompt tokens"].value == 1e6
    assert plan["tokens a second"].value == pytest.approx(200)
    assert plan["hours"].value == pytest.approx(500 / 3600)
    assert plan["hours"].low == pytest.approx(500 / 3600)
    assert plan["GPU-hours"].value == pytest.approx(4 * 500 / 3600)
    # 2 bytes a token and 20 shards of 1,000 bytes before their first row
    assert plan["disk"].value == pytest.approx((2e5 + 20_000) / 2**20)
    # 1e6 prompt tokens at .5 a million, 1e5 sampled at 2, .5556 GPU-hours at 3, .1389 hours at .1
    assert plan["money"].value == pytest.approx(0.5 + 0.2 + 3 * 4 * 500 / 3600 + 0.1 * 500 / 3600)
    assert plan["money"].unit == "USD"


def test_the_interval_is_the_bootstraps_over_problems(config):
    # Half the problems sample 0 tokens, half 200: a mean over 20 of them has the standard error
    # sqrt(100^2 / 20) = 22.4, so 95 % of resampled means of the run are within 1.96 * 22.4 * 1,000 = 43,800 of 100,000.
    plan = scaled(pilot([0.0, 200.0] * 10), 1000, config)["generated tokens"]
    assert plan.value == 1e5
    assert plan.low == pytest.approx(1e5 - 43_800, abs=4_000)
    assert plan.high == pytest.approx(1e5 + 43_800, abs=4_000)


def test_without_gpus_and_prices_there_are_no_such_figures(config):
    names = {f.name for f in scaled(pilot([1.0, 2.0]), 10, config).figures}
    assert "GPU-hours" not in names
    assert "money" not in names


def test_a_pilot_that_sampled_nothing_gives_finite_hours(config):
    assert np.isfinite(scaled(pilot([0.0, 0.0]), 10, config)["hours"].high)


async def test_a_replayed_pilot_is_counted_exactly_and_writes_nothing(tmp_path):
    problems, log = [], []
    for i in range(40):
        problems.append({"id": f"sum-{i}", "question": f"What is {i} + {i}?", "answer": str(2 * i)})
        lines = [f"We add {i} and {i}.\n", f"The answer is {2 * i}."]
        log += [{"problem_id": f"sum-{i}", "text": "".join(lines)}]
        log += [{"problem_id": f"sum-{i}", "prefix": lines[0], "text": lines[1]}] * 2
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, problems)) + "\n")
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, log)) + "\n")
    config = LabelConfig(
        problems=str(tmp_path / "problems.jsonl"), out=tmp_path / "out", policy=f"replay:{tmp_path / 'log.jsonl'}",
        num_solutions=1, allocation="fixed_k", num_rollouts=2, labeler="math_shepherd",
    )  # fmt: skip
    plan = await plan_labeling(config)
    assert (plan.problems, plan.pilot_problems) == (40, 20)
    # one solution, two rollouts at prefix 1 and two labelled steps a problem
    assert [plan[n].value for n in ("solutions", "rollouts", "labelled steps")] == [40, 80, 80]
    # every second problem, from 0: sum-0, sum-2, ... sum-38; ids are bytes
    tokens = []
    prompts = []
    for i in range(0, 40, 2):
        first, second = len(f"We add {i} and {i}.\n"), len(f"The answer is {2 * i}.")
        tokens.append(first + second + 2 * second)
        prompt = len(f"Problem:\n\nWhat is {i} + {i}?\n\nSolution:\n")
        prompts.append(prompt)
    assert plan["generated tokens"].value == pytest.approx(2 * sum(tokens))
    assert plan["generated tokens"].low < plan["generated tokens"].value < plan["generated tokens"].high
    assert plan["disk"].value > 0
    assert not config.out.exists()
    text = str(plan)
    assert "40 problems, scaled from a pilot of 20" in text
    assert "generated tokens" in text


def test_no_problem_is_a_fault_of_the_configuration(tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(ConfigError):
        asyncio.run(plan_labeling(LabelConfig(problems=str(tmp_path / "none.jsonl"), out=tmp_path / "out")))


def test_an_unknown_price_is_named_with_those_that_there_are():
    with pytest.raises(
        ConfigError, match=r"prices\.million: unknown key; known keys: currency, gpu_hour, hour, mil"
    ):
        parse(LabelConfig, problems="generator:2", out=".", prices={"million": "3"})
