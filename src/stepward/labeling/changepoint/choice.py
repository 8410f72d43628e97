"""Which grid suits a policy, chosen by how well it predicts a pilot's rollouts; no truth is read.

A policy whose wrong paths never come right has another rho and phi than the default's points hold. That shows in the
marginal likelihood of what was drawn. Weights that were fitted are scored on problems that they were not fitted on.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepward.labeling.changepoint.grid import FINE_POINTS, Grid, make_grid
from stepward.labeling.changepoint.problem import SolutionPosterior, posteriors
from stepward.labeling.changepoint.refit import refit
from stepward.labeling.evidence import SolutionEvidence

FEWEST_PROBLEMS = 4
"""Fewer leave the default."""
FOLDS = 4
FITTED_AXES = ("rho", "phi", "kappa")
"""What belongs to the policy. How hard a problem is (s0) a pilot of some problems does not know: on replayed rollouts
weights of s0 fitted to 16 of them predicted others worse than the prior does."""
PRIOR_SOLUTIONS = 1.0
"""How much the prior weighs beside the pilot's solutions."""
MARGIN_NATS = 3.0
"""A candidate has to predict the pilot better than the default by so much in all: e^3, twenty to one."""
ROUNDS = 100
"""Of the refit: weights of points that a policy rules out fall slowly."""

Axes = Mapping[str, tuple[float, ...]]
Problems = Sequence[Sequence[SolutionEvidence]]


@dataclass(frozen=True, slots=True)
class ChosenGrid:
    """A grid by axis, as ``LabelingConstants`` holds it.

    Attributes:
        axis_points: Points in place of the default's; empty = its own.
        axis_weights: Weights; empty = the priors.
        nats: Log-likelihood of the pilot's solutions by it, less the default's.
    """

    axis_points: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    axis_weights: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    nats: float = 0.0

    @property
    def name(self) -> str:
        """``default``, ``fine``, or one of them ``, fitted``."""
        points = "fine" if self.axis_points else "default"
        return f"{points}, fitted" if self.axis_weights else points


def choose_grid(problems: Problems) -> ChosenGrid:
    """The default grid, or the one that predicts the pilot's rollouts best: other points, fitted weights, or both.

    Args:
        problems: Evidence on the solutions of each pilot problem, drawn by a rule that does not look at outcomes
            (fixed K). Each solution is scored given what is known of the others of its problem.
    """
    chosen = ChosenGrid()
    if len(problems) < FEWEST_PROBLEMS:
        return chosen
    pilot = range(len(problems))
    folds = [[i for i in pilot if i % FOLDS == fold] for fold in range(FOLDS)]

    def score(numbers: Sequence[int], points: Axes, weights: Axes) -> float:
        found = [problems[i] for i in numbers]
        grid = make_grid(weights, axis_points=points, on_policy=_on_policy(problems))
        return sum(p.log_evidence for p in _read(found, grid, pool=True))

    default = score(pilot, {}, {})
    for points in ({}, FINE_POINTS):
        fitted = _Fit(problems, points)
        crossed = sum(score(fold, points, fitted.without(fold)) for fold in folds)
        plain = score(pilot, points, {}) if points else default
        for nats, refitted in ((plain - default, False), (crossed - default, True)):
            if nats > max(chosen.nats, MARGIN_NATS):
                chosen = ChosenGrid(dict(points), fitted.without(()) if refitted else {}, nats)
    return chosen


class _Fit:
    """Weights by empirical Bayes. The solutions are read one by one: pooled ones would be counted many times."""

    def __init__(self, problems: Problems, points: Axes) -> None:
        self.grid = make_grid(axis_points=points, on_policy=_on_policy(problems))
        self.theta = [
            np.stack([p.theta for p in _read([solutions], self.grid, pool=False)]) for solutions in problems
        ]

    def without(self, fold: Collection[int]) -> dict[str, tuple[float, ...]]:
        """Fitted on all problems but these."""
        theta = np.concatenate([t for i, t in enumerate(self.theta) if i not in fold])
        return refit(theta, self.grid, rounds=ROUNDS, axes=FITTED_AXES, prior_solutions=PRIOR_SOLUTIONS)


def _on_policy(problems: Problems) -> bool:
    return all(s.on_policy for solutions in problems for s in solutions)


def _read(problems: Problems, grid: Grid, *, pool: bool) -> list[SolutionPosterior]:
    return [p for solutions in problems for p in posteriors(solutions, grid, pool=pool)]
