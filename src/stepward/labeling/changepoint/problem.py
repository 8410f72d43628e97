"""The posterior of all solutions of one problem, from their stored evidence and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.changepoint.chain import ChainBatch
from stepward.labeling.changepoint.grid import Array, Grid
from stepward.labeling.changepoint.pooling import pooled_priors, sibling_priors
from stepward.labeling.changepoint.sharing import merge, mostly_shared, node_table
from stepward.labeling.changepoint.step_evidence import step_likelihoods
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import Outcome

_RIGHT, _WRONG = Outcome.RIGHT, Outcome.WRONG  # reading a member of an enum costs more than a count
_WRONG_OR_UNFINISHED = (_WRONG, Outcome.TRUNCATED, Outcome.NO_ANSWER)


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """What the likelihood reads of one solution.

    Attributes:
        outcome: 1 right, 0 wrong, -1 unknown.
        right: Right rollouts at each prefix, [T+1].
        trials: Right and wrong ones, [T+1].
    """

    outcome: int
    right: NDArray[np.int64]
    trials: NDArray[np.int64]


def observe(evidence: SolutionEvidence, *, unfinished_as_wrong: bool) -> Observed:
    """Count draws. Faults leave the likelihood; truncated and no_answer do too, or count as wrong.

    Only counts are kept, so that the posterior cannot depend on the order of the rollouts.
    """
    right, trials = np.zeros((2, len(evidence.draws)), np.int64)
    outcome = count_into(right, trials, evidence, unfinished_as_wrong)
    return Observed(outcome, right, trials)


def count_into(
    right: NDArray[np.int64], trials: NDArray[np.int64], evidence: SolutionEvidence, unfinished_as_wrong: bool
) -> int:
    """Write the counts of ``observe`` into two arrays of zeros, [T+1] or longer, and give back the own outcome."""
    wrong = _WRONG_OR_UNFINISHED if unfinished_as_wrong else (_WRONG,)
    for t, draws in enumerate(evidence.draws):
        if draws:
            right[t] = num_right = draws.count(_RIGHT)
            trials[t] = num_right + (
                sum(map(draws.count, wrong)) if unfinished_as_wrong else draws.count(_WRONG)
            )
    outcome = evidence.outcome
    return 1 if outcome is _RIGHT else 0 if outcome in wrong else -1


@dataclass(frozen=True, slots=True, eq=False)
class SolutionPosterior:
    """The posterior of one solution of T steps; arrays of length T+1.

    Attributes:
        p_right: P(c > t), c the first wrong step counted from 1.
        p_first_error: P(c = t) at t - 1 for t = 1..T, then P(no step is wrong).
        value: E[V_t].
        variance: Var[V_t], or empty where not asked for.
        gain: Nats that a rollout at t tells of the event c > t.
        theta: Posterior over the grid, [P].
        log_evidence: Log-likelihood of all that was seen of the solution, in the order right before wrong, given what
            is known of the others; nats.
    """

    p_right: Array
    p_first_error: Array
    value: Array
    variance: Array
    gain: Array
    theta: Array
    log_evidence: float


def posteriors(
    solutions: Sequence[SolutionEvidence],
    grid: Grid,
    *,
    pool: bool = True,
    unfinished_as_wrong: bool = False,
    precision: Mapping[str, float] | None = None,
    recall: Mapping[str, float] | None = None,
    with_variance: bool = False,
) -> list[SolutionPosterior]:
    """Exact posteriors of the solutions of one problem.

    Args:
        solutions: Their evidence.
        grid: Grid and prior; with a hazard axis where the completer is not the generator.
        pool: Each solution's whole evidence informs the others, unless they are mostly in shared states
            (``sharing.mostly_shared``); False: only its outcome does.
        unfinished_as_wrong: Count truncated and no_answer as wrong; False leaves them out.
        precision: Of each verifier by name.
        recall: Of each verifier by name.
        with_variance: Compute the variance of the values too.
    """
    if not solutions:
        return []
    seen = [observe(s, unfinished_as_wrong=unfinished_as_wrong) for s in solutions]
    num_steps = np.array([s.num_steps for s in solutions], np.int64)
    seen, root, speaks = _shared(solutions, seen)
    batch = _batch(solutions, seen, grid, precision or {}, recall or {})
    if pool and not mostly_shared(node_table(solutions)):
        priors = pooled_priors(grid, batch.evidence(), num_steps, speaks=speaks)
    else:
        priors = sibling_priors(grid, root, num_steps)
    summary = batch.summary(priors)
    gain = summary.information_gain()
    variance = batch.value_variance(priors) if with_variance else None
    theta = batch.theta_posterior(priors)
    found: list[SolutionPosterior] = []
    for row, first in enumerate(batch.start.tolist()):
        p_right = summary.p_right[row, first:]
        found.append(
            SolutionPosterior(
                p_right,
                np.append(np.maximum(p_right[:-1] - p_right[1:], 0.0), p_right[-1]),
                summary.value[row, first:],
                np.empty(0) if variance is None else variance[row, first:],
                gain[row, first:],
                theta[row],
                float(summary.log_evidence[row]),
            )
        )
    return found


def _shared(
    solutions: Sequence[SolutionEvidence], seen: Sequence[Observed]
) -> tuple[list[Observed], NDArray[np.int64], NDArray[np.bool_]]:
    """The counts with those of equal states merged, and what ``merge`` calls ``root`` and ``speaks``."""
    count, nodes = len(solutions), node_table(solutions)
    counts: NDArray[np.int64] = np.zeros((4, *nodes.shape), np.int64)
    right, trials, merged_right, merged_trials = counts[0], counts[1], counts[2], counts[3]
    for row, own in enumerate(seen):
        right[row, : len(own.right)], trials[row, : len(own.trials)] = own.right, own.trials
    root, speaks = np.empty((count, 2), np.int64), np.empty((count, count), np.bool_)
    steps, outcome = np.array([s.num_steps for s in solutions]), np.array([o.outcome for o in seen])
    on_policy = all(s.on_policy for s in solutions)
    merge(nodes, steps, outcome, right, trials, on_policy, merged_right, merged_trials, root, speaks)
    merged = [
        Observed(own.outcome, merged_right[row, : len(own.right)], merged_trials[row, : len(own.trials)])
        for row, own in enumerate(seen)
    ]
    return merged, root, speaks


def _batch(
    solutions: Sequence[SolutionEvidence],
    seen: Sequence[Observed],
    grid: Grid,
    precision: Mapping[str, float],
    recall: Mapping[str, float],
) -> ChainBatch:
    """A batch that has taken in all rollouts, the right ones of a prefix first."""
    likelihoods = None
    if any(s.verdicts or s.prm_scores for s in solutions):
        likelihoods = [step_likelihoods(s, precision, recall) for s in solutions]
    outcomes = np.array([o.outcome for o in seen], np.int64)
    batch = ChainBatch(grid, np.array([s.num_steps for s in solutions]), outcomes, likelihoods)
    places = [(row, t) for row, o in enumerate(seen) for t in np.flatnonzero(o.trials).tolist()]
    if places:
        rows, prefixes = np.array(places).T
        right = np.array([seen[row].right[t] for row, t in places])
        trials = np.array([seen[row].trials[t] for row, t in places])
        for draw in range(int(trials.max())):
            more = trials > draw
            batch.observe(rows[more], prefixes[more], right[more] > draw)
    batch.refresh()
    return batch
