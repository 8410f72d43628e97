"""A generative reward model of this project, end to end: trained on labels, asked k times, majority counted.

    python -m benchmarks.critics --quickstart OUT --parts FOLDER [--rows 1200] [--rounds 2] [--solutions 100]

OUT is what ``stepward quickstart --out OUT`` wrote. The embedded policy is fine-tuned to restate each step and to give
its verdict, on the quickstart labels; it judges the first solution of held-out problems, whose first wrong steps
a machine has checked, by the code of ``stepward evaluate --critic``, with one critique and with the majority of
eight. The discriminative PRM of the same labels stands beside it, its threshold from the tuning problems.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from benchmarks.evaluation import CRITICS, store
from benchmarks.report import Row
from stepward.flows.config import parse
from stepward.flows.critics import CriticConfig, run_critic
from stepward.labeling.policies.embedded import embedded_folder
from stepward.prm.dataset.store import open_dataset
from stepward.prm.evaluation.compare import compare_folders
from stepward.prm.evaluation.processbench import ProcessBenchResult, evaluate, predict, tune_threshold
from stepward.prm.evaluation.readers.processbench import read_items
from stepward.prm.models.load import load
from stepward.prm.models.verdicts import VerdictFormat
from stepward.prm.problems import Problem
from stepward.prm.seeds import derive_seed
from stepward.prm.types import LabeledSolution
from stepward.training.generative import critiques, train_generative
from stepward.training.loop import Progress, Schedule

FORMAT = VerdictFormat(instruction="Check the steps.")


def restated(row: LabeledSolution) -> LabeledSolution:
    """Each rationale is the step itself: a small model judges what stands right before the verdict."""
    steps = zip(row.labels, row.solution.steps, strict=True)
    return replace(row, labels=tuple(replace(label, rationale=step.text) for label, step in steps))


def trained(quickstart: Path, parts: Path, rows: int, rounds: int) -> Path:
    """The critic, trained in rounds that each start from the one before and stay in ``parts``."""
    base = embedded_folder()
    for number in range(rounds):
        out = parts / f"critic-{number}"
        if not out.exists():
            stored = sorted(
                open_dataset(quickstart / "dataset").solutions(),
                key=lambda r: derive_seed(number, r.solution.id),
            )
            examples, _ = critiques([restated(r) for r in stored[:rows]], FORMAT)
            schedule = Schedule(
                epochs=2, batch_size=32, learning_rate=0.002, weight_decay=0.05, row_tokens=512
            )
            train_generative(
                examples, base=base, out=out, verdict_format=FORMAT, schedule=schedule, on_progress=_said
            )
        base = out
    return base


def _said(progress: Progress) -> None:
    if progress.step % 20 == 0:
        print(f"step {progress.step}: {progress.loss:.3f}", flush=True)


def asked(critic: Path, file: Path, k: int, out: Path) -> ProcessBenchResult:
    """The critic's result with k critiques a solution."""
    config = parse(
        CriticConfig, critic="generative", policy=f"transformers:{critic}", out=out, processbench=(file,),
        num_critiques=k, max_tokens=160,
    )  # fmt: skip
    return run_critic(config).runs[0].result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quickstart", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--parts", type=Path, default=Path("runs/critics"))
    parser.add_argument("--rows", type=int, default=1200, help="labelled solutions of a round")
    parser.add_argument("--rounds", type=int, default=2, help="of two epochs each")
    parser.add_argument("--solutions", type=int, default=100)
    options = parser.parse_args()
    options.parts.mkdir(parents=True, exist_ok=True)
    critic = trained(options.quickstart, options.parts, options.rows, options.rounds)
    lines = (options.quickstart / "heldout" / "reported.jsonl").read_text().splitlines()
    firsts = {json.loads(line)["problem_id"]: line for line in reversed(lines)}
    file = options.parts / "asked.jsonl"
    file.write_text("\n".join(list(firsts.values())[::-1][: options.solutions]) + "\n")
    once, often = (asked(critic, file, k, options.parts / f"k{k}") for k in (1, 8))
    items, tuning = read_items(file), read_items(options.quickstart / "heldout" / "tuning.jsonl")
    prm = load(options.quickstart / "prm")
    scores, tuned = (
        prm.score([Problem(i.id, i.problem) for i in part], [i.steps for i in part])
        for part in (items, tuning)
    )
    threshold = tune_threshold(tuning, tuned, source="tuning problems")
    beside = evaluate(items, predict(scores, threshold), scorer="discriminative", threshold=threshold)
    gain = compare_folders(options.parts / "k8", options.parts / "k1").f1["macro"]
    print("| scorer | error accuracy | correct accuracy | F1 | undecided |\n| --- | --- | --- | --- | --- |")
    for name, r in (
        ("generative, 1 critique", once),
        ("generative, majority of 8", often),
        ("discriminative", beside),
    ):
        m = r.macro
        print(f"| {name} | {m.error_accuracy} | {m.correct_accuracy} | {m.f1} | {r.num_undecided} |")
    print(f"majority of 8 over one critique: {gain}")
    n = len(items)
    rows = [
        Row(
            f"critic trained here, F1 of the first wrong step, 1 critique, {n} solutions", once.macro.f1.value
        ),
        Row(f"critic trained here, F1, majority of 8, {n} solutions", often.macro.f1.value),
        Row(f"  lower end of the 95 % interval of 8 over 1, {n} solutions", gain.low),
        Row(f"  undecided of {n} with 8 critiques", float(often.num_undecided)),
        Row(f"  the discriminative PRM of the same labels, F1 on the same {n}", beside.macro.f1.value),
    ]
    store(CRITICS, rows)


if __name__ == "__main__":
    main()
