"""A small dataset and a results folder for the viewer's tests: trees, verdicts, hostile text, all outcomes."""

from pathlib import Path

from stepward.prm.dataset.store import Manifest, ShardStore
from stepward.prm.evaluation.intervals import Bootstrap
from stepward.prm.evaluation.items import Item
from stepward.prm.evaluation.results import Results, score_run
from stepward.prm.evaluation.results_folder import write_results
from stepward.prm.evaluation.thresholds import Threshold
from stepward.prm.types import (
    Allocation,
    Counts,
    Estimate,
    FinishReason,
    LabeledSolution,
    LabelerInfo,
    Outcome,
    PolicyInfo,
    Problem,
    Reason,
    Rollout,
    Sampler,
    Solution,
    Step,
    StepLabel,
    Verdict,
    VerdictKind,
)

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> & \"quoted\" 🙂"
POLICY = PolicyInfo("tiny", "0" * 40, "scripted", Sampler(), "p")
LABELER = LabelerInfo("changepoint", "1", "c")
MANIFEST = Manifest({"made": "for tests"}, "0", Allocation.FIXED_K, LABELER)

# (steps, values after 0..T, verdict of each step, first error, outcome). Both begin with the same step.
SHAPES = (
    (
        ("Add: 2 + 2 = 4.", "So 4 * 3 = 12.", f"Answer 12. {EVIL}"),
        (0.6, 0.7, 0.9, 0.95),
        "SS-",
        None,
        Outcome.RIGHT,
    ),
    (("Add: 2 + 2 = 4.", "So 4 * 3 = 11.", "Answer 11."), (0.6, 0.7, 0.05, 0.02), "SR-", 1, Outcome.WRONG),
    (("🙂 Guess: 2 + 2 = 5.", "Luck brings 12."), (0.6, 0.8, 0.9), "R-", 0, Outcome.RIGHT),
    (("It is long.", "And longer."), (0.6, 0.5, None), "--", None, Outcome.TRUNCATED),
)
KINDS = {"S": VerdictKind.SUPPORTED, "R": VerdictKind.REFUTED}


def step_verdicts(text: str, mark: str) -> tuple[Verdict, ...]:
    if mark == "-":
        return (Verdict(VerdictKind.UNKNOWN, "arithmetic", "1", Reason.NO_CLAIM),)
    start = text.index("=") - 6 if "4 *" in text else text.index("2 +")
    claim = "2 + 2 = 4" if mark == "S" else "computed otherwise"
    return (
        Verdict(
            KINDS[mark], "arithmetic", "1", evidence=f"{claim} {EVIL}", span=(start, text.index(".", start))
        ),
    )


def labelled(problem: int, shape: int) -> LabeledSolution:
    texts, values, marks, first_error, outcome = SHAPES[shape]
    name = f"p{problem}"
    statement = f"Problem {problem}: what is (2 + 2) * 3? {EVIL if problem == 0 else ''}"
    prefixes = tuple(
        Estimate(
            Counts(right=round(8 * v), wrong=8 - round(8 * v), n_unique=3)
            if v is not None
            else Counts(truncated=2),
            v,
            max(0.0, v - 0.2) if v is not None else None,
            min(1.0, v + 0.2) if v is not None else None,
        )
        for v in values
    )
    labels = tuple(
        StepLabel(
            None if v is None else int(first_error is None or t < first_error),
            0.1,
            "returns",
            step_verdicts(text, mark),
            EVIL if t == 0 and problem == 0 else None,
        )
        for t, (text, mark, v) in enumerate(zip(texts, marks, values[1:], strict=True))
    )
    return LabeledSolution(
        Problem(name, statement, ("12",), source="made", licence="MIT"),
        Solution(f"{name}-{shape}", name, tuple(Step(t) for t in texts), shape, outcome, "12" if shape != 1 else "11"),
        prefixes, labels, first_error, POLICY, POLICY, "h", 0, Allocation.FIXED_K, 20, 500 + shape, LABELER,
    )  # fmt: skip


def rollouts(row: LabeledSolution) -> list[tuple[str, Rollout]]:
    made = []
    for t, prefix in enumerate(row.prefixes):
        for index in range(2):
            text = f"continuation {index} of prefix {t} {EVIL}"
            outcome = Outcome.RIGHT if index == 0 and prefix.counts.right else Outcome.WRONG
            made.append(
                (
                    row.solution.id,
                    Rollout(
                        row.problem.id,
                        t,
                        index,
                        2**62 + index,
                        (1, 2),
                        text,
                        FinishReason.STOP,
                        None,
                        outcome,
                        "12",
                    ),
                )
            )
    return made


def make_dataset(folder: Path, num_problems: int = 40, shard_problems: int = 10) -> Path:
    with ShardStore.create_or_resume(folder, MANIFEST) as store:
        for shard, first in enumerate(range(0, num_problems, shard_problems)):
            rows = [
                labelled(p, s)
                for p in range(first, min(first + shard_problems, num_problems))
                for s in range(4)
            ]
            store.write_shard(shard, rows, [r for row in rows for r in rollouts(row)])
        store.seal()
    return folder


def make_results(folder: Path) -> Path:
    items = [
        Item(f"item-{k}", f"Question {k // 2}? {EVIL}", (f"first {EVIL}", "second", "third"), k % 3 if k % 2 else None,
             ("easy", "hard")[k % 2], "gen")
        for k in range(20)
    ]  # fmt: skip
    scores = [
        (0.9, 0.2, 0.1) if k % 4 == 1 else (0.9, 0.8, 0.7) if k % 2 else (0.95, 0.9, 0.85) for k in range(20)
    ]
    run = score_run(items, scores, Threshold(0.5, "dev"), scorer=f"prm {EVIL}", bootstrap=Bootstrap(20))
    write_results(folder, Results("Viewer", tuple(items), (run,)))
    return folder
