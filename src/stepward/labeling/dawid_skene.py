"""Sources of unknown quality: EM over the latent right/wrong of each step (Dawid and Skene 1979).

Used to learn precision and recall of tools, judge and returns where no human label exists. The sources are taken
as independent given the truth, which tools that share a parser are not: treat what comes out as an upper bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepward.prm.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SourceQuality:
    """What EM found.

    Attributes:
        p_wrong: P(step is wrong) for each step, shape [steps].
        flags_wrong: P(source says wrong | step is wrong, source speaks): recall, shape [sources].
        flags_right: P(source says wrong | step is right, source speaks): false alarms, shape [sources].
        base_rate: P(a step is wrong).
        iterations: Rounds until the likelihood stood still.
    """

    p_wrong: Floats
    flags_wrong: Floats
    flags_right: Floats
    base_rate: float
    iterations: int

    @property
    def precision(self) -> Floats:
        """P(step is wrong | source says wrong), shape [sources]."""
        hit = self.base_rate * self.flags_wrong
        return hit / (hit + (1 - self.base_rate) * self.flags_right)


def dawid_skene(
    votes: Sequence[Sequence[int | None]],
    *,
    max_iterations: int = 200,
    tolerance: float = 1e-9,
    smoothing: float = 1.0,
) -> SourceQuality:
    """Estimate the truth of each step and the quality of each source.

    Args:
        votes: For each step one vote a source: 1 wrong, 0 right, None silent.
        max_iterations: Most rounds.
        tolerance: Stop when the mean log-likelihood of a step rises by less.
        smoothing: Pseudo-counts on each side of every rate, which keeps a silent source from certainty.

    Raises:
        InputError: No votes, or rows of different lengths.
    """
    table = np.array([[np.nan if v is None else float(v) for v in row] for row in votes], np.float64)
    if table.ndim != 2 or table.size == 0:
        raise InputError("dawid_skene needs a row a step and a vote (or None) a source in every row")
    spoke = ~np.isnan(table)
    said_wrong = np.where(spoke, table, 0.0)
    # Start from the share of votes for "wrong": it fixes which of the two classes is which.
    p = (said_wrong.sum(1) + 0.5) / (spoke.sum(1) + 1.0)
    before = -np.inf
    iterations = 0
    hit = alarm = np.zeros(table.shape[1])
    rate = 0.5
    while iterations < max_iterations:
        iterations += 1
        rate = float((p.sum() + smoothing) / (len(p) + 2 * smoothing))
        hit = (p @ said_wrong + smoothing) / (p @ spoke + 2 * smoothing)
        alarm = ((1 - p) @ said_wrong + smoothing) / ((1 - p) @ spoke + 2 * smoothing)
        log_wrong = np.log(rate) + _votes(said_wrong, spoke, hit)
        log_right = np.log(1 - rate) + _votes(said_wrong, spoke, alarm)
        total = np.logaddexp(log_wrong, log_right)
        p = np.exp(log_wrong - total)
        if total.mean() - before < tolerance:
            break
        before = float(total.mean())
    return SourceQuality(p, hit, alarm, rate, iterations)


def _votes(said_wrong: Floats, spoke: NDArray[np.bool_], rate: Floats) -> Floats:
    """Log-likelihood of each step's votes where a source says wrong with a given rate."""
    return said_wrong @ np.log(rate) + (spoke - said_wrong) @ np.log(1 - rate)
