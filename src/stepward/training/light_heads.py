"""Light heads: a small head on a frozen model's hidden states, trained in seconds (UHeads, Q-probe).

Hidden states at the step ends are extracted once into an Arrow file with their targets; any number of heads can then
be trained from the file without the backbone. ``attach`` puts a head and its backbone together into a complete
reward model folder.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from stepward.prm.errors import InputError, ModelError
from stepward.prm.models.batches import batches_by_length, make_batch
from stepward.prm.models.discriminative import DiscriminativePRM
from stepward.prm.models.folder import PrmDescription, save_prm
from stepward.prm.models.heads import as_head, build_head, head_spec
from stepward.prm.models.inputs import InputFormat
from stepward.prm.models.weights import new_prm
from stepward.prm.seeds import derive_seed
from stepward.training.collate import Example
from stepward.training.losses import binary_cross_entropy

HEADS = {"linear": "scalar", "mlp": "mlp"}


@dataclass(frozen=True, slots=True)
class Features:
    """Hidden states of labelled steps.

    Attributes:
        hidden: ``[n, width]`` float32.
        target: ``[n]`` in [0, 1]; NaN = unknown.
        weight: ``[n]``.
        solution: ``[n]`` solution ids.
        step: ``[n]`` step indices.
    """

    hidden: Tensor
    target: Tensor
    weight: Tensor
    solution: tuple[str, ...]
    step: tuple[int, ...]


@torch.no_grad()
def extract_features(
    base: Path, examples: Sequence[Example], out: Path, *, batch_tokens: int = 8192, device: str = "cpu"
) -> int:
    """Write the backbone's hidden state at every step end of every example, batch by batch.

    Args:
        base: Folder of a transformers model.
        examples: From ``collate``, with the base's tokenizer.
        out: Arrow IPC file, one row a step; replaced where it exists.
        batch_tokens: Most padded ids of one forward pass.
        device: Where to compute.

    Returns:
        Steps written.
    """
    model = new_prm(base, head_spec("scalar")).to(device).eval()
    assert isinstance(model, DiscriminativePRM)
    width = as_width(model)
    schema = pa.schema(
        [
            pa.field("solution_id", pa.string()),
            pa.field("step", pa.int32()),
            pa.field("target", pa.float32()),
            pa.field("weight", pa.float32()),
            pa.field("hidden", pa.list_(pa.float32(), width)),
        ]
    )
    partial = out.with_name(out.name + ".partial")
    steps = 0
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for group in batches_by_length([len(e.encoded.token_ids) for e in examples], batch_tokens):
            members = [examples[i] for i in group]
            batch = make_batch([e.encoded for e in members]).to(device)
            hidden = model.hidden(batch).float().cpu().numpy()
            columns = [
                pa.array([e.solution_id for e in members for _ in e.targets]),
                pa.array([i for e in members for i in range(len(e.targets))], pa.int32()),
                pa.array([None if math.isnan(t) else t for e in members for t in e.targets], pa.float32()),
                pa.array([w for e in members for w in e.weights], pa.float32()),
                pa.FixedSizeListArray.from_arrays(pa.array(hidden.reshape(-1)), width),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            steps += len(hidden)
    partial.rename(out)
    return steps


def read_features(path: Path) -> Features:
    """Read what ``extract_features`` wrote."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    width = table.schema.field("hidden").type.list_size
    hidden = np.concatenate([c.flatten().to_numpy() for c in table["hidden"].chunks]).reshape(-1, width)
    return Features(
        torch.from_numpy(hidden.copy()),
        torch.tensor(table["target"].to_numpy(zero_copy_only=False).astype("float32")),
        torch.tensor(table["weight"].to_numpy(zero_copy_only=False)),
        tuple(table["solution_id"].to_pylist()),
        tuple(table["step"].to_pylist()),
    )


def train_light_head(
    features: Features,
    *,
    kind: str = "linear",
    epochs: int = 10,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.01,
    right_weight: float = 1.0,
    seed: int = 0,
) -> nn.Module:
    """Train a head on stored hidden states; the states are standardised and the scaling folded into the weights.

    Args:
        features: Of the training set.
        kind: ``linear`` (a probe) or ``mlp`` (two layers, UHeads).
        epochs: Passes.
        batch_size: Steps of one optimizer step.
        learning_rate: Peak, falling linearly to zero.
        weight_decay: AdamW's.
        right_weight: Weight of targets above one half (UHeads weigh the rarer class 3).
        seed: Of first weights and order.

    Returns:
        The head, for hidden states as they come from the backbone.

    Raises:
        InputError: No target is known, or all are equal.
    """
    known = ~features.target.isnan()
    hidden, target, weight = features.hidden[known], features.target[known], features.weight[known]
    if not len(target) or float(target.min()) == float(target.max()):
        raise InputError(
            f"training a light head on {len(target)} known targets: they are missing or all equal, which teaches "
            "nothing; label more steps"
        )
    if kind not in HEADS:
        raise InputError(f"unknown light head {kind!r}; known: {', '.join(HEADS)}")
    weight = weight * torch.where(target > 0.5, right_weight, 1.0)
    mean, scale = hidden.mean(0), hidden.std(0).clamp(min=1e-6)
    states = (hidden - mean) / scale
    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "light_head"))
        head = build_head(hidden.shape[1], head_spec(HEADS[kind]))
        optimizer = torch.optim.AdamW(head.parameters(), lr=learning_rate, weight_decay=weight_decay)
        total = epochs * math.ceil(len(target) / batch_size)
        step = 0
        for _ in range(epochs):
            for index in torch.randperm(len(target)).split(batch_size):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * (1 - step / total)
                raw = head(states[index])
                loss = binary_cross_entropy(as_head(head).logit(raw), target[index], weight[index])
                optimizer.zero_grad(set_to_none=True)
                (loss.sum() / weight[index].sum()).backward()
                optimizer.step()
                step += 1
    first: Any = head.linear if kind == "linear" else head.hidden
    with torch.no_grad():
        # W (h - mean) / scale + b = (W / scale) h + (b - (W / scale) mean)
        first.weight /= scale
        first.bias -= first.weight @ mean
    return head.eval()


def attach(
    base: Path,
    head: nn.Module,
    out: Path,
    inputs: InputFormat,
    *,
    features: Features | None = None,
    provenance: dict[str, Any] | None = None,
) -> Path:
    """Save backbone and head as one reward model.

    Args:
        base: The folder that the features came from.
        head: From ``train_light_head``.
        out: Folder of the reward model.
        inputs: The format that the features were made with.
        features: If given, checked to have the base's width.
        provenance: Facts for the checkpoint.

    Raises:
        ModelError: The head's width is not the base's.
    """
    model = new_prm(base, as_head(head).spec)
    assert isinstance(model, DiscriminativePRM)
    if features is not None and features.hidden.shape[1] != as_width(model):
        raise ModelError(
            f"the features are {features.hidden.shape[1]} wide and {base.name} is {as_width(model)}; they come from "
            "another model"
        )
    model.head.load_state_dict(head.state_dict())
    description = PrmDescription(
        as_head(head).spec,
        inputs.step_format,
        inputs.prompt,
        inputs.max_tokens,
        model.causal,
        training={"loss": "bce", "frozen_backbone": True, "base": base.name, **(provenance or {})},
    )
    save_prm(out, model, description, tokenizer_from=base)
    return out


def as_width(model: DiscriminativePRM) -> int:
    """Width of the hidden states."""
    backbone: Any = model.backbone
    return int(backbone.config.hidden_size)
