"""Rollouts as training rows: what was drawn to label the solutions of a problem is a tree of further solutions.

A rollout from prefix t is a solution that begins with the t steps of another one. Its own steps have no label, but an
outcome, and its first one is a sibling of the step that the solution took there: what losses on outcomes (VGS trains
on the rollouts alone) and on pairs (rStar-Math, Tree-PLV) learn from. The steps that it was given, its roll-in, are
the other solution's and carry no target here.
"""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepward.prm.policy import Tokenizer
from stepward.prm.seeds import derive_seed
from stepward.prm.steps import StepFormat
from stepward.prm.types import Counts, Estimate, LabeledSolution, Outcome, Rollout, Step, StepLabel

Path = tuple[str, ...]
"""The texts of a path's steps from the root: what a node of the tree is known by."""


def rollout_rows(
    rows: Sequence[LabeledSolution],
    rollouts: Iterable[tuple[str, Rollout]],
    step_format: StepFormat,
    tokenizer: Tokenizer,
    *,
    per_problem: int,
    seed: int,
) -> tuple[list[LabeledSolution], dict[str, int]]:
    """Some rollouts of each problem as rows.

    The estimate of a prefix that ends with a rollout's own step counts all solutions and rollouts of the problem that
    pass through that step; its value is the posterior mean under a uniform prior. Rollouts that are copies of one
    another, or of a solution, stand once at most; those whose outcome is a fault of ours, or that have no step, do not.

    Args:
        rows: Solutions of the dataset; rollouts of others are passed over.
        rollouts: (solution id, rollout), as ``Dataset.rollouts`` gives them.
        step_format: How the solutions were cut.
        tokenizer: The reward model's. Sampled ids are cut where it is the row's; else the text is.
        per_problem: Most rollouts of a problem, chosen at random.
        seed: Of that choice.

    Returns:
        The rows in the order of their problems, and by id how many first steps of each are rolled in.
    """
    by_id = {row.solution.id: row for row in rows}
    outcomes: dict[str, dict[Path, Counter[Outcome]]] = {}
    found: dict[str, dict[Path, tuple[LabeledSolution, Rollout, tuple[Step, ...]]]] = {}
    taken: dict[str, set[Path]] = {}
    for row in rows:
        path = tuple(s.text for s in row.solution.steps)
        taken.setdefault(row.problem.id, set()).add(path)
        _count(outcomes.setdefault(row.problem.id, {}), path, row.solution.outcome)
    for solution_id, rollout in rollouts:
        row = by_id.get(solution_id)
        if row is None or rollout.outcome is None or rollout.outcome.is_fault or _is_solution(rollout, row):
            continue
        own = _cut(rollout, row, step_format, tokenizer)
        if not own:
            continue
        path = tuple(s.text for s in (*row.solution.steps[: rollout.num_steps], *own))
        _count(outcomes[row.problem.id], path, rollout.outcome)
        if path not in taken[row.problem.id]:
            found.setdefault(row.problem.id, {}).setdefault(path, (row, rollout, own))
    result: list[LabeledSolution] = []
    rolled_in: dict[str, int] = {}
    for problem_id, paths in found.items():
        draw = random.Random(derive_seed(seed, "rollout_rows", problem_id))
        for path in draw.sample(sorted(paths), min(per_problem, len(paths))):
            row, rollout, own = paths[path]
            made = _row(row, rollout, own, path, outcomes[problem_id])
            result.append(made)
            rolled_in[made.solution.id] = rollout.num_steps
    return result, rolled_in


def _cut(
    rollout: Rollout, row: LabeledSolution, step_format: StepFormat, tokenizer: Tokenizer
) -> tuple[Step, ...]:
    if rollout.token_ids and row.tokenizer_hash == tokenizer.hash:
        return step_format.split_ids(rollout.token_ids, tokenizer, rollout.logprobs)
    return tuple(Step(p.text) for p in step_format.split(rollout.text) if p.text.strip())


def _is_solution(rollout: Rollout, row: LabeledSolution) -> bool:
    """Whether it is the sample that the solution itself came from."""
    return rollout.num_steps == 0 and rollout.seed == row.solution.seed


def _count(outcomes: dict[Path, Counter[Outcome]], path: Path, outcome: Outcome | None) -> None:
    if outcome is not None:
        for t in range(1, len(path) + 1):
            outcomes.setdefault(path[:t], Counter())[outcome] += 1


def _row(
    row: LabeledSolution,
    rollout: Rollout,
    own: tuple[Step, ...],
    path: Path,
    outcomes: dict[Path, Counter[Outcome]],
) -> LabeledSolution:
    t = rollout.num_steps
    return replace(
        row,
        solution=replace(
            row.solution,
            id=f"{row.solution.id}+{t}.{rollout.index}",
            steps=(*row.solution.steps[:t], *own),
            seed=rollout.seed,
            outcome=rollout.outcome,
            final_answer=rollout.answer,
            finish_reason=rollout.finish_reason,
        ),
        prefixes=(
            *row.prefixes[: t + 1],
            *(_estimate(outcomes[path[:k]]) for k in range(t + 1, len(path) + 1)),
        ),
        labels=(StepLabel(),) * len(path),
        first_error=None,
        policy=row.completer,
        generated_tokens=0,
    )


def _estimate(found: Counter[Outcome]) -> Estimate:
    counts = Counts(**{o.value: found[o] for o in Outcome})
    value = (counts.right + 1) / (counts.decided + 2) if counts.decided else None
    return Estimate(counts, value)
