"""``stepward quickstart``: the whole job on the embedded policy: label, train, evaluate, one process.

Problems come from the built-in generator, so that the truth is known: the held-out solutions are checked by
machine, step by step, and no problem of theirs is among the labelled ones.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from stepward.flows.config import EvaluateConfig, LabelConfig, TrainConfig, parse
from stepward.flows.evaluate import best_baseline, run_evaluation
from stepward.flows.label import Progress, Through, Watch, directly, label
from stepward.flows.machine_checked import LabelQuality, audit, split_by_problem, write_processbench
from stepward.flows.resumption import nothing_left
from stepward.flows.train import train
from stepward.prm.dataset.store import open_dataset
from stepward.prm.durable import write_durably
from stepward.prm.errors import InputError
from stepward.prm.evaluation.results import Results
from stepward.training.discriminative import TrainResult

T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much the quickstart does.

    Attributes:
        label_problems: Problems labelled.
        heldout_problems: Held-out problems, sampled ``heldout_samples`` times each.
        tuning_problems: Of these, the ones that thresholds are chosen on.
    """

    label_problems: int = 750
    heldout_problems: int = 250
    heldout_samples: int = 8
    tuning_problems: int = 60


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Everything that the closing table shows.

    Attributes:
        labelled: What the labelling did, or None where it was found finished.
        labels: The labels against the exact truth.
        trained: The training run.
        results: The evaluation on the held-out solutions.
    """

    labelled: Progress | None
    labels: LabelQuality
    trained: TrainResult
    results: Results


async def quickstart(
    out: Path,
    *,
    seed: int = 0,
    sizes: Sizes | None = None,
    policy: str = "embedded",
    through: Through = directly,
    watch: Watch = lambda progress: None,
    say: Say = lambda line: None,
) -> Outcomes:
    """Label, train and evaluate into ``out``; what an earlier call finished is not done again.

    Args:
        out: Folder; made where it is not there.
        seed: Of everything.
        sizes: How much to do.
        policy: Whose solutions are labelled; its weights are the reward model's start.
        through: What runs a stage: ``directly``, or a Prefect task.
        watch: Called after each labelled problem.
        say: Told what comes next.
    """
    sizes = sizes or Sizes()
    config = parse(
        LabelConfig, "quickstart", problems=f"generator:{sizes.label_problems}?split=label&level=demo&seed={seed}",
        out=out / "dataset", policy=policy, seed=seed,
    )  # fmt: skip
    say(f"1. labelling {sizes.label_problems} problems x {config.num_solutions} solutions")
    labelled = await _labelled(config, through, watch)
    quality = audit(open_dataset(config.out))
    say(
        f"2. sampling {sizes.heldout_problems} held-out problems x {sizes.heldout_samples} and checking every step"
    )
    await _heldout(config, sizes, out, seed, through, watch)
    say("3. training the PRM")
    trained = await _stage(through, "train", lambda: _train(out, policy, seed))
    say("4. evaluating on the held-out solutions")
    results = await _stage(through, "evaluate", lambda: run_evaluation(_evaluation(out, policy, seed)))
    outcomes = Outcomes(labelled, quality, trained, results)
    write_durably(
        out / "summary.json", (json.dumps(figures(outcomes), indent=1, sort_keys=True) + "\n").encode()
    )
    return outcomes


async def _labelled(config: LabelConfig, through: Through, watch: Watch) -> Progress | None:
    """Label, resuming what is there; None where it was finished before."""
    if nothing_left(config):
        return None
    return await label(
        config, resume=(config.out / "manifest.partial.json").exists(), through=through, watch=watch
    )


async def _heldout(
    config: LabelConfig, sizes: Sizes, out: Path, seed: int, through: Through, watch: Watch
) -> None:
    samples = config.model_copy(
        update={
            "problems": f"generator:{sizes.heldout_problems}?split=held_out&level=demo&seed={seed}",
            "out": out / "heldout-samples",
            "num_solutions": sizes.heldout_samples,
            "allocation": "none",
            "num_rollouts": 0,
        }
    )
    await _labelled(samples, through, watch)
    tuning, reported = split_by_problem(list(open_dataset(samples.out).solutions()), sizes.tuning_problems)
    if not tuning or not reported:
        raise InputError(
            f"{samples.out} has too few problems for a tuning and a reported part; raise heldout_problems"
        )
    write_processbench(out / "heldout" / "tuning.jsonl", tuning)
    write_processbench(out / "heldout" / "reported.jsonl", reported)


def _train(out: Path, policy: str, seed: int) -> TrainResult:
    return train(
        parse(
            TrainConfig,
            "quickstart-train",
            data=out / "dataset",
            out=out / "prm",
            base=policy,
            reference=policy,
            seed=seed,
        )
    )


def _evaluation(out: Path, policy: str, seed: int) -> EvaluateConfig:
    reported = out / "heldout" / "reported.jsonl"
    return EvaluateConfig(
        prm=str(out / "prm"),
        out=out / "evaluation",
        processbench=(reported,),
        threshold_from=out / "heldout" / "tuning.jsonl",
        samples=reported,
        baseline_policy=policy,
        seed=seed,
    )


async def _stage(through: Through, name: str, work: Callable[[], T]) -> T:
    """A stage that is not asynchronous, in a thread so that Prefect's heartbeat goes on."""
    results: list[T] = []

    async def run() -> None:
        results.append(await asyncio.to_thread(work))

    await through(name, run)
    return results[0]


def figures(outcomes: Outcomes) -> dict[str, object]:
    """The closing table's figures, for scripts."""
    results = outcomes.results
    over = best_baseline(results)
    curves = results.best_of_n[0]
    return {
        "label_first_error_f1": outcomes.labels.first_error.f1.value,
        "right_answers_with_a_wrong_step": outcomes.labels.right_answer_wrong_step,
        "processbench_f1": {run.result.scorer: asdict(run.result.macro.f1) for run in results.runs},
        "best_baseline": over[0] if over is not None else None,
        "f1_over_best_baseline": asdict(over[1]) if over is not None else None,
        "num_reported": len(results.items),
        "best_of_n": {
            p.method: {"accuracy": asdict(p.accuracy), "over_majority": asdict(p.over_majority)}
            for p in curves.points
            if p.cut == max(curves.cuts)
        },
        "pass_at": {str(k): asdict(m) for k, m in curves.pass_at_k.items()},
    }
