"""Labelling through Prefect's RayTaskRunner on a local Ray with two workers: the same bytes as in one process."""

import asyncio
import json
from pathlib import Path

import pytest

from stepward.flows.config import LabelConfig
from stepward.flows.label import label
from stepward.flows.orchestration.prefect_server import set_quiet_defaults
from stepward.prm.dataset.store import open_dataset

pytestmark = pytest.mark.cluster
ray = pytest.importorskip("ray", reason="needs ray: make test-cluster")
pytest.importorskip("prefect_ray", reason="needs prefect-ray: make test-cluster")


@pytest.fixture(scope="module")
def prefect():
    set_quiet_defaults()
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """A local Ray of two cores, so that two tasks run side by side, each in a worker process of its own."""
    ray.init(num_cpus=2, include_dashboard=False, namespace="prefect", log_to_driver=False)
    yield
    ray.shutdown()


def config_in(folder: Path, out: str) -> LabelConfig:
    return LabelConfig(
        problems="generator:12?split=label&level=easy", out=folder / out, policy="embedded", num_solutions=2,
        sampler={"max_tokens": 80}, price=1e-3, shard_problems=3,
    )  # fmt: skip


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file()
        and "metrics" not in p.name
        and not any(q.startswith(".") for q in p.relative_to(folder).parts)
    }


@pytest.mark.usefixtures("prefect", "two_workers")
def test_ray_tasks_write_the_same_bytes_as_one_process(tmp_path):
    from stepward.flows.orchestration.on_ray import label_on_ray

    done = label_on_ray(config_in(tmp_path, "ray"), num_cpus=1)
    assert (done.problems, done.shards_left) == (12, 0)
    alone = asyncio.run(label(config_in(tmp_path, "alone")))
    assert (done.solutions, done.tokens, done.outcomes) == (alone.solutions, alone.tokens, alone.outcomes)
    assert content(tmp_path / "ray") == content(tmp_path / "alone")
    assert open_dataset(tmp_path / "ray").manifest.fingerprint is not None


@pytest.mark.usefixtures("prefect", "two_workers")
def test_a_task_that_fails_on_bad_input_fails_the_run_by_name_and_is_not_tried_again(tmp_path):
    from stepward.flows.orchestration.on_ray import label_on_ray
    from stepward.prm.errors import StoreError

    asyncio.run(label(config_in(tmp_path, "taken")))
    other = config_in(tmp_path, "taken").model_copy(update={"seed": 1})
    with pytest.raises(StoreError, match="another run"):
        label_on_ray(other, num_cpus=1)
    assert json.loads((tmp_path / "taken" / "manifest.json").read_text())["seeds"]["run"] == 0
