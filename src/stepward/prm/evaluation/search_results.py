"""What searches at test time reached and cost.

A problem whose outcome is not known (no gold answer, a fault of ours) has no accuracy: it is left out and counted.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepward.prm.evaluation.errors import EvaluationError
from stepward.prm.evaluation.intervals import Bootstrap, Measure, bootstrap_ratio
from stepward.prm.evaluation.items import check_unique


@dataclass(frozen=True, slots=True)
class SearchedProblem:
    """One problem of one run.

    Attributes:
        problem_id: The problem.
        right: Whether the weighted vote's answer is right; no answer is wrong, None = not known.
        best_right: The same for the candidate of highest score.
        any_right: Whether any ended candidate is right.
        answer: The vote's answer.
        generated_tokens: Sampled.
        scored_tokens: Read by the reward model.
        num_complete, num_incomplete: Candidates that ended, and those that did not.
        num_draws, num_scored, num_faults: Draws, scored prefixes, draws that the engine failed.
        fault: Why the search could not be made.
        candidates: Rows of ``candidates.parquet`` without run and problem.
    """

    problem_id: str
    right: bool | None
    best_right: bool | None
    any_right: bool | None
    answer: str | None
    generated_tokens: int
    scored_tokens: int
    num_complete: int
    num_incomplete: int
    num_draws: int
    num_scored: int
    num_faults: int = 0
    fault: str | None = None
    candidates: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class SearchRun:
    """One method at one budget on all problems.

    Attributes:
        method: Its name.
        settings: Its settings where they are not its own defaults.
        budget_tokens: Most generated and scored tokens a problem, None = one pass.
        problems: In the order of the problems.
    """

    method: str
    settings: Mapping[str, Any]
    budget_tokens: int | None
    problems: tuple[SearchedProblem, ...]

    @property
    def name(self) -> str:
        """Method and budget."""
        return self.method if self.budget_tokens is None else f"{self.method} {self.budget_tokens}"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run reached.

    Attributes:
        name, method, settings, budget_tokens: The run's.
        accuracy: Of the weighted vote, over problems whose outcome is known.
        best_accuracy: Of the candidate of highest score.
        coverage: Problems with a right candidate.
        over_first: Accuracy minus the first run's at the same budget, paired by problem; None for it itself.
        generated_tokens, scored_tokens: Means a problem.
        most_tokens: The most that any problem cost.
        num_problems, num_unknown: Problems searched, and those of them whose outcome is not known.
        num_without_answer: Problems without an ended candidate that has an answer.
        num_faults: Draws that the engine failed.
    """

    name: str
    method: str
    settings: Mapping[str, Any]
    budget_tokens: int | None
    accuracy: Measure
    best_accuracy: Measure
    coverage: Measure
    over_first: Measure | None
    generated_tokens: float
    scored_tokens: float
    most_tokens: int
    num_problems: int
    num_unknown: int
    num_without_answer: int
    num_faults: int


@dataclass(frozen=True, slots=True)
class SearchResults:
    """Everything that one ``stepward search`` found.

    Attributes:
        title: Of the page.
        runs: In the order in which they were asked for.
        bootstrap: How intervals are drawn.
        manifest: What the run says of itself; no times, no paths.
    """

    title: str
    runs: tuple[SearchRun, ...]
    bootstrap: Bootstrap = field(default_factory=Bootstrap)
    manifest: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not self.runs or not all(run.problems for run in self.runs):
            raise EvaluationError(
                "a search without runs or without problems has no results; search something"
            )
        check_unique(run.name for run in self.runs)
        for run in self.runs:
            check_unique(p.problem_id for p in run.problems)


def summaries(results: SearchResults) -> list[RunSummary]:
    """One a run."""
    return [_summary(run, _rival(results.runs, run), results.bootstrap) for run in results.runs]


def _rival(runs: Sequence[SearchRun], run: SearchRun) -> SearchRun | None:
    """The first run of the same budget, where it is another one."""
    first = next(r for r in runs if r.budget_tokens == run.budget_tokens)
    return None if first is run else first


def _summary(run: SearchRun, rival: SearchRun | None, bootstrap: Bootstrap) -> RunSummary:
    problems = run.problems

    def share(which: str) -> Measure:
        known = {p.problem_id: getattr(p, which) for p in problems if getattr(p, which) is not None}
        return paired_mean({k: float(v) for k, v in known.items()}, bootstrap)

    return RunSummary(
        name=run.name,
        method=run.method,
        settings=run.settings,
        budget_tokens=run.budget_tokens,
        accuracy=share("right"),
        best_accuracy=share("best_right"),
        coverage=share("any_right"),
        over_first=None if rival is None else accuracy_gap(run.problems, rival.problems, bootstrap),
        generated_tokens=float(np.mean([p.generated_tokens for p in problems])),
        scored_tokens=float(np.mean([p.scored_tokens for p in problems])),
        most_tokens=max(p.generated_tokens + p.scored_tokens for p in problems),
        num_problems=len(problems),
        num_unknown=sum(p.right is None for p in problems),
        num_without_answer=sum(p.answer is None for p in problems),
        num_faults=sum(p.num_faults for p in problems),
    )


def accuracy_gap(
    mine: Sequence[SearchedProblem], theirs: Sequence[SearchedProblem], bootstrap: Bootstrap
) -> Measure:
    """Accuracy of one run minus another's, paired by problem; pairs with an unknown side are left out."""
    other = {p.problem_id: p.right for p in theirs}
    gaps = {
        p.problem_id: float(p.right) - float(known)
        for p in mine
        if p.right is not None and (known := other.get(p.problem_id)) is not None
    }
    return paired_mean(gaps, bootstrap)


def paired_mean(values: Mapping[str, float], bootstrap: Bootstrap) -> Measure:
    """A mean over problems with its interval; all runs of the same problems share their resamples."""
    return bootstrap_ratio(
        np.array(list(values.values())), np.ones(len(values)), list(values), bootstrap, "search"
    )
