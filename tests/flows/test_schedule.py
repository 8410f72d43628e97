"""Timetables: what cannot run is refused with every reason, and what is written is taken by the tools it is for."""

import asyncio
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from stepward.flows.orchestration.deployment_files import write_files
from stepward.flows.orchestration.schedule import Timetable, check, output_of, seconds_of
from stepward.prm.errors import ConfigError

SETTINGS = {"problems": "generator:4", "out": "labels/{date}"}


def timetable(**changes) -> Timetable:
    return Timetable(
        **{
            "flow": "label",
            "recipe": "quickstart",
            "name": "nightly",
            "cron": "0 3 * * *",
            "settings": SETTINGS,
        }
        | changes
    )


def test_every_fault_of_a_timetable_is_named_at_once():
    wrong = timetable(
        cron="0 3 * *", timezone="Nowhere/X", settings={"problems": "generator:4", "policyy": "x"}
    )
    with pytest.raises(ConfigError) as fault:
        check(wrong)
    told = "\n".join(fault.value.faults)
    assert all(name in told for name in ("cron", "timezone", "policyy", "out"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"cron": None}, "either --cron or --every"),
        ({"every_s": 60.0}, "either --cron or --every"),
        ({"cron": None, "every_s": 0.5}, "shorter than a second"),
        ({"flow": "dance"}, "none of"),
        ({"flow": "publish", "recipe": None, "settings": {"data": "x"}}, "repo"),
        ({"recipe": "no-such"}, "no file"),
    ],
)
def test_what_cannot_run_is_refused(changes, named):
    with pytest.raises(ConfigError, match=named):
        check(timetable(**changes))


def test_a_good_timetable_passes():
    check(timetable())
    check(
        timetable(cron=None, every_s=900.0, flow="relabel", recipe=None, settings={"data": "a", "out": "b"})
    )


def test_durations():
    assert [seconds_of(t) for t in ("90s", "15m", "6h", "1d", "1.5h")] == [90, 900, 21600, 86400, 5400]
    for text in ("15", "m", "-3h", "1w"):
        with pytest.raises(ConfigError, match="no duration"):
            seconds_of(text)


def test_runs_that_write_folders_of_their_own_have_no_common_output(tmp_path):
    assert output_of(timetable()) is None
    same = timetable(settings={"problems": "generator:4", "out": "labels"}, folder=tmp_path)
    assert output_of(same) == str(tmp_path / "labels")


def test_dates_in_settings_are_those_of_the_scheduled_run(monkeypatch, tmp_path):
    from stepward.flows.orchestration import deployed

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        deployed.flow_run, "get_scheduled_start_time", lambda: datetime(2027, 3, 1, 4, 5, tzinfo=UTC)
    )
    (tmp_path / "here").mkdir()
    prepared = deployed._prepared(
        {"out": "labels/{date}-{time}", "sampler": {"top_k": 3}}, str(tmp_path / "here")
    )
    assert prepared == {"out": "labels/2027-03-01-0405", "sampler": {"top_k": 3}}
    assert Path.cwd() == tmp_path / "here"


@pytest.mark.parametrize("pool", ["process", "docker", "kubernetes"])
def test_prefects_own_reader_takes_the_deployment_that_is_written(tmp_path, pool):
    from prefect.cli.deploy._models import PrefectYamlModel
    from prefect.flows import load_flow_from_entrypoint

    path = write_files(timetable(folder=tmp_path), tmp_path / "files", pool=pool)[0]
    stated = yaml.safe_load(path.read_text())
    deployment = PrefectYamlModel.model_validate(stated).deployments[0]
    assert deployment.work_pool.name == f"stepward-{pool}"
    assert load_flow_from_entrypoint(deployment.entrypoint).name == "label"
    raw = stated["deployments"][0]
    assert raw["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert raw["parameters"]["folder"] == (str(tmp_path) if pool == "process" else "/work")


def test_files_that_are_there_are_not_written_over(tmp_path):
    write_files(timetable(), tmp_path, pool="process")
    with pytest.raises(ConfigError, match="is there already"):
        write_files(timetable(), tmp_path, pool="process")


def test_slurm_gets_an_array_whose_jobs_label_one_part_each(tmp_path):
    (path,) = write_files(timetable(folder=tmp_path), tmp_path / "files", pool="slurm", parts=8)
    assert subprocess.run(["bash", "-n", path], capture_output=True).returncode == 0
    text = path.read_text()
    assert "#SBATCH --array=1-8" in text
    assert '--shards "$SLURM_ARRAY_TASK_ID/8" --no-prefect --resume' in text
    assert f"cd {tmp_path}" in text
    with pytest.raises(ConfigError, match="not for train"):
        write_files(timetable(flow="train"), tmp_path / "other", pool="slurm")


def test_another_deployment_that_writes_the_same_folder_is_refused(monkeypatch, tmp_path):
    import prefect

    from stepward.flows.orchestration import schedule

    class Client:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            return None

        async def read_deployments(self, deployment_filter):
            assert deployment_filter.tags.all_ == [f"out:{tmp_path / 'labels'}"]
            made = [("weekly", False), ("paused", True), ("nightly", False)]
            return [type("Deployment", (), {"name": n, "paused": p}) for n, p in made]

    monkeypatch.setattr(prefect, "get_client", Client)
    with pytest.raises(ConfigError, match=r"'weekly' writes .*labels already"):
        asyncio.run(schedule._refuse_overlap(f"out:{tmp_path / 'labels'}", timetable()))
