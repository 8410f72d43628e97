"""Several processes, trackers, narrow types and kernels: what goes through accelerate and transformers."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stepward.prm.errors import InputError
from stepward.prm.models.load import load
from stepward.prm.types import LabeledSolution
from stepward.training.acceleration import refuse_flat_shards, start_accelerator
from stepward.training.discriminative import train_discriminative
from stepward.training.loop import Progress, Schedule
from stepward.training.preparation import Trained

accelerate = pytest.importorskip("accelerate", reason="needs accelerate: pip install 'stepward[train]'")
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.tracking import GeneralTracker  # noqa: E402

Sums = Callable[..., list[LabeledSolution]]
QUICK = Schedule(epochs=2, batch_size=8, learning_rate=1e-2)


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """accelerate keeps its state in the process: none is left behind for other tests."""
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


class Notes(GeneralTracker):
    """A tracker of accelerate's protocol that keeps what it is told."""

    name = "notes"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {}
        self.logged: list[tuple[int, dict[str, float]]] = []

    @property
    def tracker(self) -> "Notes":
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.settings = values

    def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
        self.logged.append((step or 0, values))


def test_trackers_get_every_step_and_every_evaluation_and_the_weights_stay_the_same(
    tiny_llama: Path, tmp_path: Path, sums: Sums
):
    rows = sums(16)  # 2 steps an epoch
    notes = Notes()
    accelerator = start_accelerator(
        [notes], folder=tmp_path, settings={"loss": "bce", "steps": {"delimiter": "newline"}}, on_cpu=True
    )
    train_discriminative(
        rows, rows, base=tiny_llama, out=tmp_path / "tracked", schedule=QUICK, accelerator=accelerator
    )
    train_discriminative(rows, rows, base=tiny_llama, out=tmp_path / "plain", schedule=QUICK)
    assert notes.settings == {"loss": "bce", "steps": "{'delimiter': 'newline'}"}
    steps = [(step, set(values)) for step, values in notes.logged if "loss" in values]
    assert steps == [(k, {"loss", "tokens_per_s", "learning_rate"}) for k in (1, 2, 3, 4)]
    found = [(step, values) for step, values in notes.logged if "validation/f1" in values]
    assert [step for step, _ in found] == [2, 4]
    assert {"validation/step_accuracy", "validation/f1", "validation/loss"} <= set(found[0][1])
    same = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("tracked", "plain")]
    assert same[0] == same[1]


def test_tensorboard_gets_its_files(tiny_llama: Path, tmp_path: Path, sums: Sums):
    pytest.importorskip("tensorboard", reason="the tracker needs tensorboard: pip install 'stepward[train]'")
    accelerator = start_accelerator(["tensorboard"], folder=tmp_path / "logs", on_cpu=True)
    train_discriminative(
        sums(8), [], base=tiny_llama, out=tmp_path / "prm", schedule=QUICK, accelerator=accelerator
    )
    accelerator.end_training()
    (path,) = (tmp_path / "logs/stepward").glob("events.out.tfevents*")  # settings have a file of their own
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path))
    events.Reload()
    # 8 solutions in batches of 8, two epochs: one step each, and the loss of both epochs.
    assert [e.step for e in events.Scalars("loss")] == [1, 2]
    history = load(tmp_path / "prm").description.history
    assert [e.value for e in events.Scalars("validation/loss")] == pytest.approx([h["loss"] for h in history])


def test_weights_and_biases_gets_its_files_without_a_network(
    tiny_llama: Path, tmp_path: Path, sums: Sums, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("wandb", reason="the tracker needs wandb: pip install wandb")
    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    accelerator = start_accelerator(["wandb"], folder=tmp_path, settings={"loss": "bce"}, on_cpu=True)
    train_discriminative(
        sums(8), [], base=tiny_llama, out=tmp_path / "prm", schedule=QUICK, accelerator=accelerator
    )
    accelerator.end_training()
    (path,) = tmp_path.rglob("run-*.wandb")
    kept = path.read_bytes()
    assert b"validation/loss" in kept
    for epoch in load(tmp_path / "prm").description.history:
        assert repr(epoch["loss"]).encode() in kept


def test_an_unknown_tracker_and_one_without_its_library_are_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"unknown tracker 'tensorbord'.*tensorboard"):
        start_accelerator(["tensorbord"], folder=tmp_path, on_cpu=True)
    if "aim" not in {str(n) for n in accelerate.tracking.get_available_trackers()}:
        with pytest.raises(InputError, match="pip install aim"):
            start_accelerator(["aim"], folder=tmp_path, on_cpu=True)


def test_a_progress_line_has_loss_speed_step_accuracy_and_f1():
    metrics = {"epoch": 0, "step_accuracy": 0.8712, "f1": 0.64, "loss": 0.5}
    line = Progress(120, 1445, 1, 0.41234, 5310.4, metrics).line()
    assert line == (
        "step 120 of 1,445, epoch 2, loss 0.4123, 5,310 tokens/s, validation after epoch 1: step accuracy 0.871, "
        "F1 0.640"
    )
    assert Progress(1, 2, 0, 1.0, 10.0, {}).line() == "step 1 of 2, epoch 1, loss 1.0000, 10 tokens/s"


def test_bfloat16_computes_narrow_and_keeps_float32_weights(tiny_llama: Path, tmp_path: Path, sums: Sums):
    result = train_discriminative(
        sums(16), [], base=tiny_llama, out=tmp_path / "prm", schedule=QUICK, bfloat16=True
    )
    tensors = load_file(tmp_path / "prm/model.safetensors")
    assert {t.dtype for t in tensors.values()} == {torch.float32}
    assert all(bool(t.isfinite().all()) for t in tensors.values())
    assert result.history[-1]["loss"] < 1.0


def test_gradient_checkpointing_changes_no_weight(tiny_llama: Path, tmp_path: Path, sums: Sums):
    for name, trained in (("plain", Trained()), ("saving", Trained(gradient_checkpointing=True))):
        train_discriminative(
            sums(16), [], base=tiny_llama, out=tmp_path / name, schedule=QUICK, trained=trained
        )
    plain, saving = (load_file(tmp_path / n / "model.safetensors") for n in ("plain", "saving"))
    assert all(torch.allclose(plain[k], saving[k], atol=1e-6) for k in plain)


def test_liger_kernels_are_put_in_where_they_are_installed_and_asked_for_by_name_where_not(
    tiny_llama: Path, tmp_path: Path, sums: Sums, monkeypatch: pytest.MonkeyPatch
):
    from transformers.integrations import liger

    patched: list[tuple[str, dict[str, bool]]] = []
    monkeypatch.setattr(
        liger, "apply_liger_kernel", lambda model, options: patched.append((type(model).__name__, options))
    )
    train_discriminative(
        sums(8), [], base=tiny_llama, out=tmp_path / "prm", schedule=QUICK, trained=Trained(liger=True)
    )
    assert patched == [("LlamaModel", {"cross_entropy": False, "fused_linear_cross_entropy": False})]
    monkeypatch.undo()
    if not liger.is_liger_kernel_available():
        with pytest.raises(InputError, match="pip install liger-kernel"):
            train_discriminative(
                sums(8), [], base=tiny_llama, out=tmp_path / "other", trained=Trained(liger=True)
            )


class Sharded:
    """Stands for an accelerator under FSDP: prepares nothing, and hands out all weights at the end."""

    distributed_type = "DistributedType.FSDP"
    is_main_process = True
    process_index, num_processes = 0, 1
    device = "cpu"
    trackers: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.gathered = 0

    def prepare(self, *things: Any) -> tuple[Any, ...]:
        return things

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def reduce(self, value: torch.Tensor, reduction: str) -> torch.Tensor:
        return value

    def clip_grad_norm_(self, weights: Any, most: float) -> None:
        torch.nn.utils.clip_grad_norm_(weights, most)

    def get_state_dict(self, model: torch.nn.Module) -> dict[str, torch.Tensor]:
        self.gathered += 1
        return {k: v.detach().clone() for k, v in model.state_dict().items()}

    def wait_for_everyone(self) -> None: ...


def test_sharded_weights_are_gathered_once_and_saved_whole(tiny_llama: Path, tmp_path: Path, sums: Sums):
    accelerator = Sharded()
    train_discriminative(
        sums(16), [], base=tiny_llama, out=tmp_path / "sharded", schedule=QUICK, accelerator=accelerator
    )
    train_discriminative(sums(16), [], base=tiny_llama, out=tmp_path / "plain", schedule=QUICK)
    assert accelerator.gathered == 1
    sharded, plain = (load_file(tmp_path / n / "model.safetensors") for n in ("sharded", "plain"))
    assert all(torch.equal(plain[k], sharded[k]) for k in plain)


def test_fsdp_that_flattens_weights_is_refused(tmp_path: Path):
    class Flat:
        class state:  # noqa: N801
            fsdp_plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=1)

    with pytest.raises(InputError, match="fsdp_version: 2"):
        refuse_flat_shards(Flat)
    Flat.state.fsdp_plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2)
    refuse_flat_shards(Flat)


RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import conftest
from stepward.training.acceleration import start_accelerator
from stepward.training.discriminative import train_discriminative
from stepward.training.loop import Schedule

base, out, how = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
rows = conftest.make_sums(40)
def slowly(progress):
    print(progress.step, flush=True)
    if how == "killed":
        import time
        time.sleep(0.3)
accelerator = start_accelerator(folder=out.parent, on_cpu=True) if how in ("several", "sharded") else None
if accelerator is not None:
    assert accelerator.num_processes == 2, accelerator.num_processes
if how == "sharded":
    # accelerate chooses FSDP on accelerators alone; its own code for it, and torch's, run on a CPU as well.
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
    PartialState._shared_state["distributed_type"] = accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, cpu_ram_efficient_loading=False, auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    )
    def sharded(progress):
        from torch.distributed.tensor import DTensor
        shares = [p.to_local().numel() / p.numel() for p in models[0].parameters() if isinstance(p, DTensor)]
        assert len(shares) == len(list(models[0].parameters())) and min(shares) < 1
    models = []
    prepare = accelerator.prepare
    accelerator.prepare = lambda model, optimizer: models.append(model) or prepare(model, optimizer)
    slowly = sharded
train_discriminative(
    rows, rows[:8], base=base, out=out, accelerator=accelerator, on_progress=slowly,
    schedule=Schedule(epochs=2, batch_size=8, learning_rate=1e-2, micro_batch_tokens=90, save_every_steps=2),
)
"""


def script(tmp_path: Path) -> Path:
    path = tmp_path / "run.py"
    path.write_text(RUN)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("how", ["several", "sharded"])
def test_two_processes_give_the_weights_of_one_with_the_same_effective_batch(
    tiny_llama: Path, tmp_path: Path, how: str
):
    """``several`` holds all weights in each process, ``sharded`` half of them (FSDP version 2 over gloo)."""
    program, here = script(tmp_path), str(Path(__file__).parent)
    subprocess.run([sys.executable, program, here, str(tiny_llama), str(tmp_path / "one"), "one"], check=True)
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program), here,
         str(tiny_llama), str(tmp_path / "two"), how],
        check=True, timeout=500,
    )  # fmt: skip
    one, two = (load_file(tmp_path / n / "model.safetensors") for n in ("one", "two"))
    assert set(one) == set(two)
    worst = max(float((one[k] - two[k]).abs().max()) for k in one)
    assert worst < 2e-5
    # Not because nothing moved.
    base = load_file(tiny_llama / "model.safetensors")
    moved = max(float((one[k] - base[k]).abs().max()) for k in one if k in base)
    assert moved > 1e-2


@pytest.mark.slow
def test_a_run_killed_by_the_system_and_resumed_ends_with_the_bytes_of_one_that_was_not(
    tiny_llama: Path, tmp_path: Path
):
    program, here = script(tmp_path), str(Path(__file__).parent)
    command = [sys.executable, str(program), here, str(tiny_llama)]
    subprocess.run([*command, str(tmp_path / "whole"), "one"], check=True)
    process = subprocess.Popen([*command, str(tmp_path / "prm"), "killed"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "7":
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "prm").exists()
    time.sleep(0.1)
    done = subprocess.run(
        [*command, str(tmp_path / "prm"), "one"], check=True, capture_output=True, text=True
    )
    # Checkpoints every 2 steps: after the kill at step 7 the run goes on with step 7, not with step 1.
    assert done.stdout.split()[0] == "7"
    for name in ("model.safetensors", "prm.json"):
        assert (tmp_path / "prm" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
