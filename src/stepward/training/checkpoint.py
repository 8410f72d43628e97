"""Training state on disk: whole or not there, safetensors and JSON only.

``<folder>/step-000042/`` holds weights, optimizer moments and generator states in ``state.safetensors`` and the
rest in ``state.json``, which is written last and names the hash of the tensors. A folder without it, or whose hash
differs, is an interrupted checkpoint: the last whole one is used.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stepward.prm.errors import StoreError

STATE_FILE = "state.json"
TENSOR_FILE = "state.safetensors"
KEPT = 2


@dataclass(frozen=True, slots=True)
class Position:
    """Where a run stands.

    Attributes:
        step: Optimizer steps taken.
        epoch: The epoch of the next batch.
        batch: The next batch within it.
        history: Metrics so far.
        run: Hash of everything that decides the weights.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    history: tuple[dict[str, Any], ...] = ()
    run: str = ""
    running: dict[str, float] = field(default_factory=dict)


def save_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, position: Position) -> Path:
    """Write a checkpoint and drop all but the newest ``KEPT``.

    Only trainable weights are stored: frozen ones come back from the base.
    """
    tensors: dict[str, Tensor] = {f"model.{n}": p for n, p in model.named_parameters() if p.requires_grad} | {
        f"buffer.{n}": b for n, b in model.named_buffers()
    }
    names = {id(p): n for n, p in model.named_parameters()}
    for group in optimizer.param_groups:
        for p in group["params"]:
            for key, value in optimizer.state.get(p, {}).items():
                tensors[f"optimizer.{key}.{names[id(p)]}"] = torch.as_tensor(value)
    tensors["rng.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        for i, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"rng.cuda.{i}"] = state
    target = folder / f"step-{position.step:06d}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    # clone: safetensors refuses tensors that share memory, such as tied embeddings.
    save_file({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, target / TENSOR_FILE)
    _sync(target / TENSOR_FILE)
    state = {
        "step": position.step,
        "epoch": position.epoch,
        "batch": position.batch,
        "history": list(position.history),
        "run": position.run,
        "running": position.running,
        "sha256": _sha256(target / TENSOR_FILE),
    }
    partial = target / (STATE_FILE + ".partial")
    partial.write_text(json.dumps(state, indent=1, sort_keys=True))
    _sync(partial)
    partial.rename(target / STATE_FILE)
    for old in sorted(folder.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)
    return target


def newest_state(folder: Path) -> tuple[Position, Path] | None:
    """The newest whole checkpoint, or None. Interrupted ones are passed over."""
    for path in sorted(folder.glob("step-*"), reverse=True):
        try:
            state = json.loads((path / STATE_FILE).read_text())
            if state["sha256"] != _sha256(path / TENSOR_FILE):
                continue
        except (OSError, ValueError, KeyError):
            continue
        position = Position(
            state["step"],
            state["epoch"],
            state["batch"],
            tuple(state["history"]),
            state["run"],
            state["running"],
        )
        return position, path
    return None


def restore_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put weights, moments and generator states back.

    Raises:
        StoreError: The checkpoint's weights are not the model's.
    """
    tensors = load_file(path / TENSOR_FILE)
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    stored = {k.removeprefix("model.") for k in tensors if k.startswith("model.")}
    if stored != set(trainable):
        raise StoreError(
            f"the checkpoint {path.name} holds other weights than the model trains: "
            f"{sorted(stored ^ set(trainable))[:5]}; remove its folder to start again"
        )
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(tensors[f"model.{name}"])
        for name, buffer in model.named_buffers():
            buffer.copy_(tensors[f"buffer.{name}"])
    _restore_moments(tensors, trainable, optimizer)
    torch.set_rng_state(tensors["rng.cpu"])
    cuda = [v for k, v in sorted(tensors.items()) if k.startswith("rng.cuda.")]
    if cuda and torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)


def _restore_moments(
    tensors: Mapping[str, Tensor], trainable: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    for key, value in tensors.items():
        if not key.startswith("optimizer."):
            continue
        _, moment, name = key.split(".", 2)
        parameter = trainable[name]
        # AdamW counts its steps in a tensor that stays on the CPU.
        place = "cpu" if moment == "step" else parameter.device
        optimizer.state[parameter][moment] = value.to(place)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
