"""The files under deploy/: each is read by the tool that it is for, and says what the documentation says of it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted(
    p
    for p in (DEPLOY / "kubernetes").glob("*.yaml")
    if p.name not in ("kustomization.yaml", "vllm-values.yaml")
)


def objects() -> list[dict[str, Any]]:
    return [o for path in MANIFESTS for o in yaml.safe_load_all(path.read_text()) if o]


@pytest.mark.parametrize(
    "path", [DEPLOY / "one-box" / "serve.sh", DEPLOY / "slurm" / "label.sbatch"], ids=lambda p: p.name
)
def test_bash_reads_the_scripts(path):
    assert subprocess.run(["bash", "-n", path], capture_output=True, text=True).stderr == ""


def test_python_compiles_the_ray_script():
    compile((DEPLOY / "ray" / "first_solutions.py").read_text(), "first_solutions.py", "exec")


def test_every_manifest_is_listed_and_every_reference_is_there():
    listed = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == [p.name for p in MANIFESTS]
    names = {(o["kind"], o["metadata"]["name"]) for o in objects()}
    text = "\n".join(p.read_text() for p in MANIFESTS)
    assert ("PersistentVolumeClaim", "stepward-work") in names
    assert "claimName: stepward-work" in text
    assert ("Secret", "prefect-database") in names
    assert ("Service", "prefect-server") in names
    assert "http://prefect-server:4200/api" in text


def test_the_parts_of_the_indexed_job_are_as_many_as_its_pods():
    (job,) = [o for o in objects() if o["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert job["spec"]["completions"] == 16
    assert '--shards "$((JOB_COMPLETION_INDEX + 1))/16"' in container["args"][0]
    text = (DEPLOY / "slurm" / "label.sbatch").read_text()
    assert "#SBATCH --array=1-16" in text
    assert '--shards "$SLURM_ARRAY_TASK_ID/16"' in text


def test_all_routers_are_told_to_keep_sessions():
    helm = yaml.safe_load((DEPLOY / "kubernetes" / "vllm-values.yaml").read_text())
    assert helm["routerSpec"]["routingLogic"] == "session"
    assert helm["routerSpec"]["sessionKey"] == "x-session-id"
    assert "--policy sticky_least_loaded" in (DEPLOY / "one-box" / "serve.sh").read_text()
    ray = yaml.safe_load((DEPLOY / "ray" / "serve_llm.yaml").read_text())
    (model,) = ray["applications"][0]["args"]["llm_configs"]
    assert model["deployment_config"]["request_router_config"]["request_router_class"].endswith(
        "ConsistentHashRouter"
    )


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kubectl_builds_the_kustomization():
    built = subprocess.run(
        ["kubectl", "kustomize", DEPLOY / "kubernetes"], capture_output=True, text=True, timeout=60
    )
    assert built.returncode == 0, built.stderr
    assert len([o for o in yaml.safe_load_all(built.stdout) if o]) == len(objects())


@pytest.mark.cluster
def test_kubernetes_own_schemas_take_every_object():
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="make test-cluster installs it")
    for item in objects():
        kubernetes_validate.validate(item, "1.32", strict=True)


@pytest.mark.cluster
def test_ray_serve_takes_its_config(monkeypatch):
    schema = pytest.importorskip("ray.serve.schema", reason="needs ray[serve]: make test-cluster")
    stated = yaml.safe_load((DEPLOY / "ray" / "serve_llm.yaml").read_text())
    deployed = schema.ServeDeploySchema.model_validate(stated)
    assert deployed.applications[0].import_path == "ray.serve.llm:build_openai_app"
    from ray.serve.config import RequestRouterConfig

    (model,) = json.loads(json.dumps(deployed.applications[0].args))["llm_configs"]
    router = RequestRouterConfig(**model["deployment_config"]["request_router_config"])
    assert router.get_request_router_class().__name__ == "ConsistentHashRouter"
