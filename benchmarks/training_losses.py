"""Every discriminative loss and head on machine-checked data of the embedded policy, three seeds each.

    STEPWARD_BENCH=folder python -m benchmarks.training_losses

The data are labelled once and shared by all runs; each finished run leaves a file in the folder, so that a killed
benchmark goes on where it stood. ``benchmarks.training`` makes the table of what is there.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.training_completer import label_with, make_completer
from stepward.flows.build import checkpoint_folder, prompt_template
from stepward.flows.config import LabelConfig, parse
from stepward.flows.evaluate import baselines
from stepward.flows.label import label
from stepward.flows.machine_checked import split_by_problem, write_processbench
from stepward.labeling.relabel import Relabeling, relabel_dataset
from stepward.prm.dataset.store import open_dataset
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.readers.processbench import read_items
from stepward.prm.models.hub import local_folder
from stepward.prm.models.inputs import InputFormat
from stepward.prm.models.load import load
from stepward.prm.models.reward_model import DiscriminativeRewardModel
from stepward.prm.steps import StepFormat
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import LabeledSolution, Problem
from stepward.training.collate import collate
from stepward.training.discriminative import Labelling, train_discriminative
from stepward.training.light_heads import attach, extract_features, read_features, train_light_head
from stepward.training.loop import Schedule

FOLDER = Path(os.environ.get("STEPWARD_BENCH", Path(tempfile.gettempdir()) / "stepward-bench-training"))
SEEDS = (0, 1, 2)
LABEL_PROBLEMS, TRAINED_PROBLEMS = 750, 400
HELDOUT_PROBLEMS, HELDOUT_SEED, SAMPLES = 1060, 2, 8
TUNING_PROBLEMS, REPORTED_PROBLEMS = 60, 400

SCHEDULE = Schedule(
    epochs=4,
    batch_size=32,
    learning_rate=2e-3,
    weight_decay=0.05,
    share_prompts=True,
    micro_batch_tokens=16384,
)


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the table.

    Attributes:
        loss: A loss by name, or ``light_linear`` or ``light_mlp``.
        head: A head by name; the loss's usual one where None.
        target: What labels become; ``no_error_yet`` reads the change-point posterior of the same draws.
        data: ``dataset``, or ``completed``: the same solutions with rollouts of the stronger completer.
        surprisal: Whether the policy's log-probabilities are an input.
        schedule: How the weights are moved.
        labelling: Further options of ``Labelling``.
    """

    loss: str
    head: str | None = None
    target: str = "label"
    data: str = "dataset"
    surprisal: bool = True
    schedule: Schedule = SCHEDULE
    labelling: dict[str, Any] = field(default_factory=dict)

    @property
    def taught(self) -> str:
        """What it learns from, for the table."""
        if self.loss in ("soft_minimum", "implicit"):
            return "outcome"
        return "counts" if self.loss == "beta_binomial" else self.target


RUNS: dict[str, Run] = {
    "bce": Run("bce"),
    "beta_binomial": Run("beta_binomial"),
    "pqm": Run("pqm"),
    "pairwise": Run("pairwise"),
    "mse": Run("mse", target="no_error_yet"),
    "soft_minimum": Run("soft_minimum"),
    "implicit": Run("implicit", surprisal=False),
    "outcome_classes": Run("outcome_classes", target="outcome", labelling={"block_tokens": 1}),
    "ensemble": Run("ensemble"),
    "pairwise, problem": Run("pairwise", schedule=replace(SCHEDULE, pair_scope="problem")),
    "bce, no_error_yet": Run("bce", target="no_error_yet"),
    "bce, value": Run("bce", target="value"),
    "mse, value": Run("mse", target="value"),
    "bce, progress": Run("bce", target="progress"),
    "bce, two_class": Run("bce", "two_class"),
    "bce, mlp": Run("bce", "mlp"),
    "bce, vocabulary": Run("bce", "vocabulary"),
    "light_linear": Run("light_linear", surprisal=False),
    "light_mlp": Run("light_mlp", surprisal=False),
    "beta_binomial, completer": Run("beta_binomial", data="completed"),
}


def make_data(folder: Path) -> None:
    """Label the training problems and sample the held-out ones, as the quickstart does."""
    config = label_config(folder, LABEL_PROBLEMS)
    samples = config.model_copy(
        update={
            "problems": f"generator:{HELDOUT_PROBLEMS}?split=held_out&level=demo&seed={HELDOUT_SEED}",
            "seed": HELDOUT_SEED,
            "out": folder / "heldout-samples",
            "num_solutions": SAMPLES,
            "allocation": "none",
            "num_rollouts": 0,
        }
    )
    for job in (config, samples):
        if not (job.out / "manifest.json").exists():
            asyncio.run(label(job, resume=(job.out / "manifest.partial.json").exists()))
    if (folder / "reported.jsonl").exists():
        return
    tuning, others = split_by_problem(list(open_dataset(samples.out).solutions()), TUNING_PROBLEMS)
    reported, _ = split_by_problem(others, REPORTED_PROBLEMS)
    for part, rows in (("tuning", tuning), ("reported", reported)):
        write_processbench(folder / f"{part}.jsonl", rows)


def make_further_labels(folder: Path) -> None:
    """Other labels of the same solutions: the posterior of the same draws, and rollouts of a stronger completer."""
    if not (folder / "posterior" / "manifest.json").exists():
        relabel_dataset(
            open_dataset(folder / "dataset"), folder / "posterior", Relabeling(rule="changepoint")
        )
    make_completer(folder / "dataset", TRAINED_PROBLEMS, folder / "completer")
    label_with(folder / "completer", label_config(folder, TRAINED_PROBLEMS), folder / "completed")


def label_config(folder: Path, problems: int) -> LabelConfig:
    """The quickstart's labelling of the first so many problems."""
    return parse(
        LabelConfig,
        "quickstart",
        problems=f"generator:{problems}?split=label&level=demo&seed=0",
        out=folder / "dataset",
        seed=0,
    )


def train_and_score(name: str, run: Run, seed: int, folder: Path) -> dict[str, Any]:
    """Train one model and score the tuning and the reported solutions with it.

    Returns:
        CPU seconds of training, and the scores of both parts; a beta head's deviations too.
    """
    dataset = open_dataset(folder / ("posterior" if run.target == "no_error_yet" else run.data))
    rows, _ = split_by_problem(list(dataset.solutions()), TRAINED_PROBLEMS)
    out = folder / "models" / f"{name.replace(', ', '-')}-{seed}"
    began = time.process_time()
    if run.loss.startswith("light_"):
        _train_light(run.loss.removeprefix("light_"), rows, seed, folder, out)
    else:
        policy = checkpoint_folder("embedded")
        train_discriminative(
            rows,
            [],
            base=policy,
            out=out,
            loss=run.loss,
            target=run.target,
            head=run.head,
            reference=policy if run.surprisal else None,
            step_format=step_format(folder),
            prompt=prompt_template(None, local_folder(policy)),
            labelling=Labelling(**run.labelling),
            rollouts=dataset.rollouts(),
            schedule=run.schedule,
            seed=seed,
            overwrite=True,
        )
    trained = time.process_time()
    model: Any = load(out)
    result: dict[str, Any] = {"train_cpu_s": trained - began}
    for part in ("tuning", "reported"):
        items = read_items(folder / f"{part}.jsonl")
        result[part] = score(model, items)
        if run.loss == "beta_binomial":
            problems = [Problem(i.id, i.problem) for i in items]
            result[f"deviation_{part}"] = model.deviation(problems, [i.steps for i in items])
            head: Any = model.prm.model.head
            scored_by, head.spec = head.spec, replace(head.spec, any_of=0)
            result[f"mu_{part}"] = score(model, items)
            head.spec = scored_by
    return result


def score(model: DiscriminativeRewardModel, items: Sequence[Item]) -> list[tuple[float, ...]]:
    """Step scores of each item."""
    return model.score([Problem(i.id, i.problem) for i in items], [i.steps for i in items])


def step_format(folder: Path) -> StepFormat:
    """The dataset's own."""
    return StepFormat(**open_dataset(folder / "dataset").manifest.step_format)


def _train_light(kind: str, rows: Sequence[LabeledSolution], seed: int, folder: Path, out: Path) -> None:
    """A head on the policy's hidden states; the features are extracted anew, since that is part of the cost."""
    policy = local_folder(checkpoint_folder("embedded"))
    inputs = InputFormat(load_tokenizer(policy), step_format(folder), prompt_template(None, policy))
    examples, _ = collate(rows, inputs)
    features = folder / "features.arrow"
    extract_features(policy, examples, features)
    attach(policy, train_light_head(read_features(features), kind=kind, seed=seed), out, inputs)


def baseline_scores(folder: Path) -> dict[str, dict[str, Any]]:
    """Scores of position and length, log-probability and sibling pass rate on both parts."""
    tuning, reported = (read_items(folder / f"{part}.jsonl") for part in ("tuning", "reported"))
    found = baselines("embedded", step_format(folder), tuning, reported)
    return {name: {"tuning": list(t), "reported": list(r)} for name, (t, r) in found.items()}


def result_file(folder: Path, name: str, seed: int) -> Path:
    """Where the scores of a finished run are."""
    return folder / "results" / f"{name.replace(', ', '-')}-{seed}.json"


def main() -> None:
    """Do what is not done yet."""
    make_data(FOLDER)
    make_further_labels(FOLDER)
    results = FOLDER / "results"
    results.mkdir(exist_ok=True)
    if not (results / "baselines.json").exists():
        _write(results / "baselines.json", baseline_scores(FOLDER))
    for seed in SEEDS:
        for name, run in RUNS.items():
            path = result_file(FOLDER, name, seed)
            if not path.exists():
                found = train_and_score(name, run, seed, FOLDER)
                _write(path, found)
                print(f"{name}, seed {seed}: {found['train_cpu_s']:.1f} CPU s", file=sys.stderr, flush=True)


def _write(path: Path, value: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value))
    partial.rename(path)


if __name__ == "__main__":
    main()
