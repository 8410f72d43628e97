"""Tokens a CPU second and peak memory of one training run, beside TRL's PRM trainer on the same data and model.

    python -m benchmarks.training_speed FOLDER plain|packed|shared

The data are solutions of mixed lengths (40 to 1,000 ids, evenly by their logarithm), several a problem; the model is a
small Llama with random weights. Each run is a process of its own, so that peaks of memory are its own too, and one
trainer follows the other in turn.
"""

import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
import venv
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from transformers import AutoModelForTokenClassification, LlamaConfig

from benchmarks.report import Row
from stepward.flows.build import checkpoint_folder, prompt_template
from stepward.prm.models.heads import head_spec
from stepward.prm.models.hub import local_folder
from stepward.prm.models.inputs import InputFormat
from stepward.prm.models.weights import new_prm
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import (
    Allocation,
    Counts,
    Estimate,
    LabeledSolution,
    LabelerInfo,
    PolicyInfo,
    Problem,
    Solution,
    Step,
    StepLabel,
)
from stepward.training.collate import collate
from stepward.training.loop import Loop, Schedule, fit, threads
from stepward.training.objectives import OBJECTIVES

TRL = ("trl==1.13.0", "torch==2.13.0", "transformers==5.24.0")
PROBLEMS, SOLUTIONS = 24, 4
SETTINGS = {"epochs": 1, "batch_size": 16, "learning_rate": 1e-4}
LAYOUTS = {
    "plain": {},
    "packed": {"row_tokens": 1024},
    "shared": {"share_prompts": True},
}
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Taken:
    """What one run took.

    Attributes:
        tokens: Ids of all solutions, padding not counted, times epochs.
        fit_cpu_s: CPU seconds of the training loop.
        whole_cpu_s: The same with the encoding of the texts.
        peak_mib: Peak memory of the process.
        grown_mib: Of which since the model was loaded.
        loss: Mean loss of the run.
    """

    tokens: int
    fit_cpu_s: float
    whole_cpu_s: float
    peak_mib: float
    grown_mib: float
    loss: float


def make_inputs(folder: Path) -> None:
    """Data in TRL's stepwise format, and a model."""
    draw = random.Random(0)
    words = ["take", "add", "twice", "less", "then", "each", "from", "gives", "left", "more", "of", "all"]

    def text(num_words: int) -> str:
        return " ".join(f"{draw.choice(words)} {draw.randrange(100)}" for _ in range(num_words))

    rows = []
    for number in range(PROBLEMS):
        prompt = f"Problem {number}: {text(8)}\n"
        for _ in range(SOLUTIONS):
            length = math.exp(draw.uniform(math.log(8), math.log(200)))
            num_steps = max(1, round(length / 12))
            steps = [text(max(1, round(length / num_steps))) for _ in range(num_steps)]
            wrong = draw.randrange(2 * num_steps)
            rows.append(
                {"prompt": prompt, "completions": steps, "labels": [t < wrong for t in range(num_steps)]}
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "settings.json").write_text(json.dumps(SETTINGS))
    policy = local_folder(checkpoint_folder("embedded"))
    shutil.copytree(policy, folder / "model", dirs_exist_ok=True)
    config = LlamaConfig(
        vocab_size=len(json.loads((policy / "tokenizer.json").read_text())["model"]["vocab"]) + 8,
        hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=2048, num_labels=2,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForTokenClassification.from_config(config).save_pretrained(folder / "model")


def read_rows(folder: Path) -> list[LabeledSolution]:
    """The same data as dataset rows."""
    maker = PolicyInfo("generated", "0", "none")
    rows = []
    for number, line in enumerate((folder / "data.jsonl").read_text().splitlines()):
        values = json.loads(line)
        labels = [int(v) for v in values["labels"]]
        problem = Problem(values["prompt"], values["prompt"].removesuffix("\n"))
        rows.append(
            LabeledSolution(
                problem=problem,
                solution=Solution(str(number), problem.id, tuple(Step(s) for s in values["completions"])),
                prefixes=(Estimate(Counts()),) * (len(labels) + 1),
                labels=tuple(StepLabel(label) for label in labels),
                first_error=next((i for i, label in enumerate(labels) if not label), None),
                policy=maker,
                completer=maker,
                tokenizer_hash="",
                seed=0,
                allocation=Allocation.FIXED_K,
                prompt_tokens=0,
                generated_tokens=0,
                labeler=LabelerInfo("generated", "0", ""),
            )
        )
    return rows


def train_once(folder: Path, layout: str) -> Taken:
    """Our trainer on the folder's data and model."""
    before_mib = peak_mib()
    tokenizer = load_tokenizer(folder / "model")
    torch.manual_seed(0)
    model = new_prm(folder / "model", head_spec("two_class"))
    rows = read_rows(folder)
    began = time.process_time()
    examples, _ = collate(rows, InputFormat(tokenizer, StepFormat(), prompt_template(None, folder / "model")))
    losses: list[float] = []
    schedule = Schedule(**SETTINGS, **LAYOUTS[layout], max_gradient_norm=1.0, warmup_share=0.0)
    loop = Loop(
        model, examples, None, OBJECTIVES["bce"], schedule, 0, "", None, dict, lambda p: losses.append(p.loss)
    )
    started = time.process_time()
    with threads(1):
        fit(loop)
    ended = time.process_time()
    tokens = sum(len(e.encoded.token_ids) for e in examples) * schedule.epochs
    return Taken(
        tokens, ended - started, ended - began, peak_mib(), peak_mib() - before_mib, sum(losses) / len(losses)
    )


def peak_mib() -> float:
    """Peak resident memory of this process so far."""
    # Not getrusage: its peak is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def trl_python(folder: Path) -> str:
    """The interpreter of TRL's environment: STEPWARD_TRL_PYTHON, or one made here."""
    given = os.environ.get("STEPWARD_TRL_PYTHON")
    if given:
        return given
    home = folder / "venv-trl"
    if not (home / "bin" / "python").exists():
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "pip", "install", "-q", *TRL], check=True)
    return str(home / "bin" / "python")


def measure(folder: Path) -> dict[str, list[Taken]]:
    """All trainers in turn, ``ROUNDS`` times."""
    make_inputs(folder)
    root = Path(__file__).parents[1]
    trl = [trl_python(folder.parent), str(root / "benchmarks" / "trl_prm.py"), str(folder)]
    ours = [sys.executable, "-m", "benchmarks.training_speed", str(folder)]
    commands = {
        "trl": [*trl, "random"],
        "trl by length": [*trl, "by_length"],
        **{layout: [*ours, layout] for layout in LAYOUTS},
    }
    found: dict[str, list[Taken]] = {name: [] for name in commands}
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            done = subprocess.run(command, env=quiet, cwd=root, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
            found[name].append(Taken(**json.loads(done.stdout.splitlines()[-1])))
    return found


def speed_rows(found: dict[str, list[Taken]]) -> list[Row]:
    """The rows of the report: medians over the rounds."""
    assert len({t.tokens for taken in found.values() for t in taken}) == 1, "the trainers saw other ids"

    def middle(name: str, what: str) -> float:
        return median(getattr(t, what) for t in found[name])

    def rate(name: str, what: str = "fit_cpu_s") -> float:
        return found[name][0].tokens / middle(name, what)

    rows: list[Row] = []
    for ours, goal in (("plain", 1.0), ("packed", 1.5), ("shared", None)):
        what = f"tokens a CPU s, {ours}, against TRL 1.13.0"
        rows += [
            Row(what, rate(ours), rate("trl"), goal, of_ratio=True),
            Row(f"{what} by length", rate(ours), rate("trl by length"), None),
            Row(f"{what}, with encoding", rate(ours, "whole_cpu_s"), rate("trl", "whole_cpu_s"), None),
            Row(f"peak memory, MiB, {ours}, against TRL", middle(ours, "peak_mib"), middle("trl", "peak_mib"),
                1.0, lower_is_better=True, of_ratio=True),
            Row(f"  of which for model and training, {ours}", middle(ours, "grown_mib"),
                middle("trl", "grown_mib"), 1.0, lower_is_better=True, of_ratio=True),
        ]  # fmt: skip
    return rows


if __name__ == "__main__":
    print(json.dumps(asdict(train_once(Path(sys.argv[1]), sys.argv[2]))))
