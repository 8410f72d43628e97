"""Prefect around a run changes no byte, and its faults come back as they are."""

import asyncio

import pytest

from stepward.flows.orchestration.prefect_server import set_quiet_defaults
from stepward.prm.errors import EngineError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect")]


@pytest.fixture(scope="module")
def prefect():
    set_quiet_defaults()
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield


def test_what_a_flow_hands_to_through_becomes_a_task_and_its_result_comes_back():
    from stepward.flows.orchestration.orchestrate import as_flow

    done = []

    async def body(through):
        for i in range(3):

            async def work(i=i):
                done.append(i)

            await through(f"shard {i}", work)
        return "result"

    assert asyncio.run(as_flow("label", {"seed": 0}, body)) == "result"
    assert done == [0, 1, 2]


def test_only_a_fault_of_the_engine_that_may_pass_is_tried_again(monkeypatch):
    from stepward.flows.orchestration import orchestrate

    monkeypatch.setattr(orchestrate, "_RETRY_DELAYS_S", [0.0])
    tries = []

    async def body(through):
        async def flaky():
            tries.append("flaky")
            if len(tries) < 2:
                raise EngineError("502", retryable=True)

        async def broken():
            tries.append("broken")
            raise ValueError("bad row 7")

        await through("a", flaky)
        await through("b", broken)

    with pytest.raises(ValueError, match="bad row 7"):
        asyncio.run(orchestrate.as_flow("label", {}, body))
    assert tries == ["flaky", "flaky", "broken"]


def test_the_relabel_flow_writes_what_the_command_writes_with_the_constants_of_the_run(tmp_path):
    from typer.testing import CliRunner

    from stepward.flows.cli.main import app
    from stepward.flows.orchestration.deployed import relabel
    from stepward.prm.dataset.store import Manifest, ShardStore, open_dataset
    from stepward.prm.types import (
        Allocation,
        Counts,
        Estimate,
        LabeledSolution,
        LabelerInfo,
        Outcome,
        PolicyInfo,
        Problem,
        Solution,
        Step,
        StepLabel,
    )  # fmt: skip

    policy, spread, labeler = PolicyInfo("p", "1", "x"), Allocation.FIXED_K, LabelerInfo("hard", "1", "")
    row = LabeledSolution(
        Problem("p0", "?", ("1",)), Solution("p0-0", "p0", (Step("a"), Step("b")), outcome=Outcome.WRONG),
        (Estimate(Counts(right=2, wrong=2)), Estimate(Counts(right=2, wrong=2)), Estimate(Counts(wrong=5))),
        (StepLabel(), StepLabel()), None, policy, policy, "", 0, spread, 0, 0, labeler,
    )  # fmt: skip
    constants = {"axis_points": {"rho": [0.3, 0.6]}, "axis_weights": {"rho": [0.5, 0.5]}}
    for name, kept in (("run", constants), ("other", {})):
        manifest = Manifest({"n": name}, "1", spread, labeler, constants=kept)
        with ShardStore.create_or_resume(tmp_path / name, manifest) as store:
            store.write_shard(0, [row])
            store.seal()
    told = asyncio.run(relabel(str(tmp_path / "run"), str(tmp_path / "flow"), "changepoint"))
    for source, out in (("run", "command"), ("other", "without")):
        words = ["relabel", tmp_path / source, "--rule", "changepoint", "--out", tmp_path / out]
        assert CliRunner().invoke(app, [str(w) for w in words]).exit_code == 0
    rows = {n: list(open_dataset(tmp_path / n).solutions()) for n in ("flow", "command", "without")}
    assert told["fingerprint"] == open_dataset(tmp_path / "flow").manifest.fingerprint
    assert rows["flow"] == rows["command"] != rows["without"]
