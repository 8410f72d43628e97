"""Baselines that know nothing of mathematics: what a step scorer must beat.

Each gives P(step is right) for each step, so that the same ProcessBench function scores it with a threshold
tuned on the same other split.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepward.prm.evaluation.errors import StepCountError
from stepward.prm.evaluation.intervals import Floats
from stepward.prm.evaluation.items import Scores
from stepward.prm.evaluation.logistic import Logistic, fit_logistic


@dataclass(frozen=True, slots=True)
class PositionBaseline:
    """P(step is right) from where the step stands and how long it and the solution are."""

    model: Logistic

    def score(self, lengths: Sequence[int]) -> Scores:
        """Scores of one solution's steps.

        Args:
            lengths: Length of each step (tokens or characters, as in the fit).
        """
        return tuple(float(p) for p in self.model.probability(position_features(lengths)))


def position_features(lengths: Sequence[int]) -> Floats:
    """Shape [steps, 6]: index, index / number of steps, whether last, log number of steps, log length, and log
    length over the mean log length of the solution."""
    n = len(lengths)
    if n == 0:
        raise StepCountError("a solution without steps has no step scores; leave it out")
    index = np.arange(n, dtype=np.float64)
    logs = np.log1p(np.asarray(lengths, dtype=np.float64))
    return np.column_stack(
        [np.log1p(index), index / n, index == n - 1, np.full(n, np.log(n)), logs, logs - logs.mean()]
    )


def fit_position(
    lengths: Sequence[Sequence[int]], labels: Sequence[Sequence[int | None]]
) -> PositionBaseline:
    """Fit the baseline on labelled rows that are not reported.

    Args:
        lengths: Length of each step of each solution.
        labels: 1 right, 0 wrong, None unknown (left out) of each step; steps after a first error are unknown.

    Raises:
        StepCountError: A solution has another number of labels than steps.
        EmptySideError: All known labels are equal.
    """
    tables: list[Floats] = []
    targets: list[bool] = []
    for i, (row, marks) in enumerate(zip(lengths, labels, strict=True)):
        if len(row) != len(marks):
            raise StepCountError(
                f"solution {i}: {len(marks)} labels for {len(row)} steps; one a step is needed"
            )
        known = [t for t, mark in enumerate(marks) if mark is not None]
        if known:
            tables.append(position_features(row)[known])
            targets += [marks[t] == 1 for t in known]
    if not tables:
        raise StepCountError("no step has a known label; label some solutions first")
    return PositionBaseline(fit_logistic(np.concatenate(tables), targets))


def labels_up_to_first_error(num_steps: int, first_error: int | None) -> tuple[int | None, ...]:
    """Step labels that a first error implies: 1 before it, 0 at it, unknown after it; all 1 where None."""
    if first_error is None:
        return (1,) * num_steps
    return (1,) * first_error + (0,) + (None,) * (num_steps - first_error - 1)


def logprob_scores(token_logprobs: Sequence[Sequence[float]]) -> Scores:
    """exp of the policy's mean log-probability in each step: its geometric-mean token probability.

    Args:
        token_logprobs: For each step the log-probabilities (natural log) of its tokens.

    Raises:
        StepCountError: A step has no tokens: its score is unknown, not 0.
    """
    scores: list[float] = []
    for step, row in enumerate(token_logprobs):
        if len(row) == 0:
            raise StepCountError(f"step {step} has no token log-probabilities; ask the policy for them")
        scores.append(min(1.0, float(np.exp(np.mean(np.asarray(row, dtype=np.float64))))))
    return tuple(scores)


def sibling_scores(num_steps: int, num_right: int, num_siblings: int) -> Scores:
    """The pass rate of the problem's other solutions, (right + 1) / (siblings + 2), at every step.

    It orders problems, not steps: its first error is the first step or none.
    """
    if not 0 <= num_right <= num_siblings or num_steps < 1:
        raise ValueError(
            f"{num_right} right of {num_siblings} siblings, {num_steps} steps: need 0 <= right <= siblings and a step"
        )
    return ((num_right + 1) / (num_siblings + 2),) * num_steps
