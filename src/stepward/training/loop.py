"""The training loop: one plain loop over effective batches, exact to the bit on a CPU.

What a run sees is a function of (seed, epoch): no iterator holds hidden state, so a killed run goes on where it
stood. The loss is divided by the weight of all labelled units of the effective batch, not of a micro-batch.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepward.prm.errors import ModelError, StoreError
from stepward.prm.models.batches import make_batch
from stepward.prm.models.discriminative import place_logprobs
from stepward.prm.models.heads import as_head
from stepward.prm.seeds import derive_seed
from stepward.training.checkpoint import Position, newest_state, restore_state, save_state
from stepward.training.collate import Example
from stepward.training.objectives import Objective, make_labels
from stepward.training.order import batch_order, micro_batches

SHARDED = ("FSDP", "DEEPSPEED")


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the weights are moved.

    Attributes:
        epochs: Passes over the examples.
        batch_size: Solutions of one optimizer step.
        learning_rate: Peak rate.
        head_learning_rate: Rate of the head and the surprisal input; the same where 0.
        weight_decay: Of matrices; vectors (norms, biases) have none.
        warmup_share: Share of all steps in which the rate rises linearly.
        decay: ``linear`` or ``cosine`` to zero, or ``constant``.
        max_gradient_norm: Clip the gradient's norm; 0 = never.
        micro_batch_tokens: Most ids of one forward pass.
        row_tokens: Pack solutions into rows of this many ids; 0 = one solution a row.
        share_prompts: A problem's solutions share a batch, and its prompt stands once before them; causal models
            alone. Saves the most where prompts are long and solutions many; a batch then holds fewer problems, which a
            small batch pays for in quality.
        save_every_steps: A checkpoint every so many steps, besides one an epoch; 0 = an epoch only.
        pair_margin: Least difference of targets within a pair.
        pair_scope: Which steps make pairs: ``siblings``, or any two of a ``problem``.
    """

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 1e-5
    head_learning_rate: float = 0.0
    weight_decay: float = 0.0
    warmup_share: float = 0.03
    decay: str = "cosine"
    max_gradient_norm: float = 1.0
    micro_batch_tokens: int = 8192
    row_tokens: int = 0
    share_prompts: bool = False
    save_every_steps: int = 0
    pair_margin: float = 0.2
    pair_scope: str = "siblings"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a progress line shows.

    Attributes:
        step: Optimizer steps taken.
        total_steps: Of the whole run.
        epoch: Current epoch, from 0.
        loss: Mean loss of the last effective batch.
        tokens_per_s: Ids of solutions a second, padding not counted.
        metrics: The last evaluation's.
    """

    step: int
    total_steps: int
    epoch: int
    loss: float
    tokens_per_s: float
    metrics: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """One line for a person: loss and speed, and the last evaluation's step accuracy and F1."""
        parts = [
            f"step {self.step:,} of {self.total_steps:,}",
            f"epoch {self.epoch + 1}",
            f"loss {self.loss:.4f}",
            f"{self.tokens_per_s:,.0f} tokens/s",
        ]
        shown = (("step_accuracy", "step accuracy"), ("f1", "F1"))
        found = [f"{word} {self.metrics[name]:.3f}" for name, word in shown if name in self.metrics]
        if found:
            parts.append(f"validation after epoch {self.metrics['epoch'] + 1}: {', '.join(found)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Loop:
    """What the loop works on.

    Attributes:
        model: Gives raw outputs for (batch, log-probabilities); has a ``head``.
        examples: The training set.
        logprobs: The reference's log-probabilities of each example's ids, or None.
        objective: Loss and normaliser.
        schedule: See there.
        seed: Of the order and of dropout.
        run: Hash of everything that decides the weights; a checkpoint of another run is refused.
        folder: Where checkpoints go, or None for none.
        evaluate: Called after each epoch; its metrics go into the history.
        on_progress: Called after each step.
        accelerator: An ``accelerate.Accelerator``, or None for one process. Its trackers get every step's loss,
            speed and rate, and every evaluation's metrics.
        autocast: Compute in bfloat16 with float32 weights.
        collect: Where weights are sharded over processes (FSDP, DeepSpeed): called once at the end with all of them,
            on the main process. No checkpoint is written then, so such a run starts again when it is killed.
    """

    model: nn.Module
    examples: Sequence[Example]
    logprobs: Sequence[Tensor] | None
    objective: Objective
    schedule: Schedule
    seed: int
    run: str
    folder: Path | None
    evaluate: Callable[[], dict[str, Any]]
    on_progress: Callable[[Progress], None] | None = None
    accelerator: Any = None
    autocast: bool = False
    collect: Callable[[dict[str, Tensor]], None] | None = None


def fit(loop: Loop) -> tuple[dict[str, Any], ...]:
    """Train, from the last whole checkpoint where there is one, to the end.

    Returns:
        The metric history, one entry an epoch.

    Raises:
        ModelError: A loss is not finite; the message names the solutions.
        StoreError: The checkpoint folder belongs to another run.
    """
    schedule = loop.schedule
    optimizer = make_optimizer(loop.model, schedule)
    model = loop.model
    if loop.accelerator is not None:
        model, optimizer = loop.accelerator.prepare(model, optimizer)
    lengths = [len(e.encoded.token_ids) for e in loop.examples]
    groups = [e.problem_id for e in loop.examples] if _by_problem(loop) else None
    per_epoch = len(batch_order(lengths, schedule.batch_size, loop.seed, 0, groups))
    total = per_epoch * schedule.epochs
    # Dropout draws from torch's generator: its state is a function of the seed, then part of every checkpoint.
    torch.manual_seed(derive_seed(loop.seed, "training"))
    position = _resume(loop, optimizer)
    history = list(position.history)
    for epoch in range(position.epoch, schedule.epochs):
        order = batch_order(lengths, schedule.batch_size, loop.seed, epoch, groups)
        first = position.batch if epoch == position.epoch else 0
        losses = dict(position.running) if first else {"loss": 0.0, "weight": 0.0}
        started, tokens = time.perf_counter(), 0
        for number in range(first, len(order)):
            step = epoch * per_epoch + number
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate_factor(step, total, schedule)
            loss, weight = _step(loop, model, optimizer, order[number])
            losses = {"loss": losses["loss"] + loss * weight, "weight": losses["weight"] + weight}
            tokens += sum(lengths[i] for i in order[number])
            rate = tokens / max(time.perf_counter() - started, 1e-9)
            last = history[-1] if history else {}
            _report(loop, optimizer, Progress(step + 1, total, epoch, loss, rate, last))
            last_of_epoch = number + 1 == len(order)
            if (
                not last_of_epoch
                and schedule.save_every_steps
                and (step + 1) % schedule.save_every_steps == 0
            ):
                _save(
                    loop, optimizer, Position(step + 1, epoch, number + 1, tuple(history), loop.run, losses)
                )
        mean = losses["loss"] / max(losses["weight"], 1e-12)
        history.append({"epoch": epoch, "step": (epoch + 1) * per_epoch, "loss": mean, **loop.evaluate()})
        _track(loop, {f"validation/{k}": v for k, v in history[-1].items()}, (epoch + 1) * per_epoch)
        _save(loop, optimizer, Position((epoch + 1) * per_epoch, epoch + 1, 0, tuple(history), loop.run))
    if loop.accelerator is not None and is_sharded(loop.accelerator) and loop.collect is not None:
        weights = loop.accelerator.get_state_dict(model)
        if loop.accelerator.is_main_process:
            loop.collect(weights)
    return tuple(history)


def is_sharded(accelerator: Any) -> bool:
    """Whether no process holds all weights."""
    return accelerator is not None and str(accelerator.distributed_type).rpartition(".")[2] in SHARDED


def _report(loop: Loop, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """A step's figures for whoever watches, and for the trackers."""
    if loop.accelerator is not None and not loop.accelerator.is_main_process:
        return
    if loop.on_progress is not None:
        loop.on_progress(progress)
    values = {
        "loss": progress.loss,
        "tokens_per_s": progress.tokens_per_s,
        "learning_rate": optimizer.param_groups[0]["lr"],
    }
    _track(loop, values, progress.step)


def _track(loop: Loop, values: dict[str, Any], step: int) -> None:
    if loop.accelerator is not None and loop.accelerator.trackers:
        numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}
        loop.accelerator.log(numbers, step=step)


def _by_problem(loop: Loop) -> bool:
    """Whether a problem's solutions must stand together."""
    return loop.objective.by_problem or loop.schedule.share_prompts


def rate_factor(step: int, total: int, schedule: Schedule) -> float:
    """The share of the peak learning rate at a step, in (0, 1]."""
    warmup = round(schedule.warmup_share * total)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    left = (total - step) / max(total - warmup, 1)
    if schedule.decay == "linear":
        return left
    if schedule.decay == "cosine":
        return 0.5 * (1 - float(np.cos(np.pi * left)))
    return 1.0


def make_optimizer(model: nn.Module, schedule: Schedule) -> torch.optim.AdamW:
    """AdamW over the trainable weights, matrices with decay; the head may have a rate of its own.

    Raises:
        ModelError: The head has weights and none of them is trained.
    """
    head = [p for n, p in model.named_parameters() if n.startswith("head.")]
    if head and not any(p.requires_grad for p in head):
        raise ModelError("the head is frozen: it would stay as it was initialised; train the head as well")
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            own_rate = name.startswith(("head.", "surprisal."))
            groups.setdefault((own_rate, parameter.ndim > 1), []).append(parameter)
    head_rate = schedule.head_learning_rate or schedule.learning_rate
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "peak": head_rate if own_rate else schedule.learning_rate,
                "weight_decay": schedule.weight_decay if is_matrix else 0.0,
            }
            for (own_rate, is_matrix), parameters in groups.items()
        ],
        lr=schedule.learning_rate,
        betas=(0.9, 0.95),
    )


def _step(
    loop: Loop, model: nn.Module, optimizer: torch.optim.Optimizer, indices: Sequence[int]
) -> tuple[float, float]:
    """One optimizer step over one effective batch: (mean loss, weight)."""
    schedule, accelerator = loop.schedule, loop.accelerator
    micro = micro_batches(
        [loop.examples[i] for i in indices],
        schedule.micro_batch_tokens,
        packed=schedule.row_tokens > 0,
        by_problem=_by_problem(loop),
    )
    micro = [[indices[k] for k in group] for group in micro]
    pairs = loop.objective.by_problem
    labels = [
        make_labels(
            [loop.examples[i] for i in m],
            pairs=pairs,
            margin=schedule.pair_margin,
            scope=schedule.pair_scope,
        )
        for m in micro
    ]
    weight = float(sum(float(loop.objective.weight(y)) for y in labels))
    if weight <= 0:
        return 0.0, 0.0
    rank, world = (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)
    rounds = -(-len(micro) // world)
    device = next(model.parameters()).device
    model.train()
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), device=device)
    for turn in range(rounds):
        number = turn * world + rank
        # Every process makes as many passes; one without work of its own repeats the first with weight 0.
        share = 1.0 if number < len(micro) else 0.0
        number = number if number < len(micro) else 0
        last = turn + 1 == rounds
        with nullcontext() if last or accelerator is None else accelerator.no_sync(model):
            units = _forward(loop, model, micro[number], labels[number].to(device), device)
            loss = share * units.sum() / weight
            # Data-parallel wrappers average gradients over processes; here they are shares of one sum.
            (loss * world).backward() if accelerator is None else accelerator.backward(loss * world)
            total += loss.detach()
    if accelerator is not None:
        total = accelerator.reduce(total, reduction="sum")
    if not bool(total.isfinite()):
        raise ModelError(_not_finite(loop, model, micro, labels, device))
    if schedule.max_gradient_norm:
        trained = [p for p in model.parameters() if p.requires_grad]
        clip = torch.nn.utils.clip_grad_norm_ if accelerator is None else accelerator.clip_grad_norm_
        clip(trained, schedule.max_gradient_norm)
    optimizer.step()
    return float(total), weight


def _forward(
    loop: Loop, model: nn.Module, indices: Sequence[int], labels: Any, device: torch.device
) -> Tensor:
    examples = [loop.examples[i] for i in indices]
    batch = make_batch(
        [e.encoded for e in examples],
        row_tokens=loop.schedule.row_tokens,
        share_prompts=loop.schedule.share_prompts,
        score_at=[e.places for e in examples],
    )
    logprobs = None
    if loop.logprobs is not None:
        logprobs = place_logprobs(batch, [loop.logprobs[i] for i in indices]).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16) if loop.autocast else nullcontext():
        raw = model(batch.to(device), logprobs)
    return loop.objective.losses(raw.float(), as_head(loop.model.head), labels)  # pyright: ignore[reportArgumentType]


def _not_finite(
    loop: Loop, model: nn.Module, micro: Sequence[Sequence[int]], labels: Sequence[Any], device: torch.device
) -> str:
    """Name the solutions whose own loss is not finite."""
    names: list[str] = []
    with torch.no_grad():
        for indices, _ in zip(micro, labels, strict=True):
            for i in indices:
                own = make_labels([loop.examples[i]]).to(device)
                if not bool(_forward(loop, model, [i], own, device).isfinite().all()):
                    names.append(loop.examples[i].solution_id)
    return (
        f"the loss is not finite; training stopped before the step. Solutions with a loss that is not finite by "
        f"themselves: {', '.join(names[:10]) or 'none, so the weights overflow'}. Lower the learning rate, or look at "
        "these rows"
    )


def _resume(loop: Loop, optimizer: torch.optim.Optimizer) -> Position:
    kept = loop.folder is not None and not is_sharded(loop.accelerator)
    found = newest_state(loop.folder) if kept and loop.folder is not None else None
    if found is None:
        return Position()
    position, path = found
    if position.run != loop.run:
        raise StoreError(
            f"{path.parent} holds a checkpoint of another run (data, base or settings differ); name another folder or "
            "remove it to start again"
        )
    restore_state(path, loop.model, optimizer)
    return replace(position)


def _save(loop: Loop, optimizer: torch.optim.Optimizer, position: Position) -> None:
    if loop.folder is None or is_sharded(loop.accelerator):
        return
    if loop.accelerator is None or loop.accelerator.is_main_process:
        save_state(loop.folder, loop.model, optimizer, position)
    if loop.accelerator is not None:
        loop.accelerator.wait_for_everyone()


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute with so many CPU threads: sums are then added in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
