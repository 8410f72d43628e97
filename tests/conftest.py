"""Fixtures that all tests share."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of public data: STEPWARD_DATA, else ../shared/data beside the checkout."""
    named = os.environ.get("STEPWARD_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"public data not found: set STEPWARD_DATA (looked in {folder})")
    return folder


VLLM_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "src"),
}


@pytest.fixture(scope="session")
def vllm_interpreter() -> str:
    """A Python that has vLLM, named by STEPWARD_VLLM_PYTHON."""
    path = os.environ.get("STEPWARD_VLLM_PYTHON")
    if not path:
        pytest.skip("STEPWARD_VLLM_PYTHON names no interpreter with vLLM")
    return path


@dataclass
class VllmServer:
    """A vLLM server in a process group of its own.

    Attributes:
        root: Its URL without path; ``url`` is the base URL of the OpenAI-compatible API.
        process: Its leader.
        log: What it printed.
    """

    root: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def url(self) -> str:
        return self.root + "/v1"

    def wait(self, timeout_s: float = 600) -> "VllmServer":
        """Until it answers."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                urllib.request.urlopen(self.root + "/health", timeout=5)
                return self
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"vLLM did not start:\n{self.log.read_text()[-3000:]}")
                time.sleep(0.3)

    def signal(self, number: int) -> None:
        """To the server and its engine, which is a process of its own."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)


StartVllm = Callable[..., VllmServer]


@pytest.fixture(scope="session")
def start_vllm(vllm_interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartVllm]:
    """Start a server on a checkpoint, float32 on CPU; call ``wait`` on what it gives. Stopped when the session ends."""
    started: list[VllmServer] = []

    def start(folder: Path, *arguments: str, port: int | None = None) -> VllmServer:
        if port is None:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
        log = tmp_path_factory.mktemp("vllm") / "server.log"
        command = [
            vllm_interpreter, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder),
            "--dtype", "float32", "--enforce-eager", "--block-size", "32", "--no-enable-chunked-prefill",
            "--host", "127.0.0.1", "--port", str(port), *arguments,
        ]  # fmt: skip
        with log.open("w") as out:
            process = subprocess.Popen(
                command,
                env=os.environ | VLLM_SETTINGS,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        started.append(VllmServer(f"http://127.0.0.1:{port}", process, log))
        return started[-1]

    yield start
    for server in started:
        server.signal(15)
    for server in started:
        try:
            server.process.wait(30)
        except subprocess.TimeoutExpired:
            server.signal(9)


@pytest.fixture(scope="session")
def in_vllm(
    vllm_interpreter: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run a script's text in vLLM's interpreter, with stepward on its path."""

    def run(source: str, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
        script = tmp_path_factory.mktemp("vllm") / "script.py"
        script.write_text(source)
        return subprocess.run(
            [vllm_interpreter, str(script), *arguments],
            env=os.environ | VLLM_SETTINGS | settings,
            capture_output=True,
            text=True,
            timeout=1800,  # another run may have the machine
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in transformers' layout (benchmarks/smollm2.py), or a skip that says why not."""
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    try:
        from benchmarks.smollm2 import NotToBeHad, smollm2_folder
    finally:
        sys.path.pop(0)
    try:
        return smollm2_folder()
    except NotToBeHad as fault:
        pytest.skip(f"SmolLM2 is not to be had: {fault}")
