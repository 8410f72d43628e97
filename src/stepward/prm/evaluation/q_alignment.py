"""Q-alignment: within a state, does a signal order the possible next steps as their measured values do?

Hernandez-Gutierrez et al., QVal, arXiv 2606.32034. A state is a prefix, its actions are the sibling steps that
were sampled from it, and the value of an action is the measured P(right | prefix after it). Any step signal can
be asked: reward-model scores, log-probabilities, verdicts. Nothing is trained, and scales do not matter, because
only orders within a state are compared.

Measured values are noisy, so even a perfect signal agrees with them less than always. The ceiling says how much:
for each pair the posterior probability that the measured order is the true one (independent Beta posteriors).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepward.prm.evaluation.errors import MissingItemsError, ScoreRangeError, StepCountError
from stepward.prm.evaluation.intervals import Bootstrap, Measure, bootstrap_ratio
from stepward.prm.types import LabeledSolution


@dataclass(frozen=True, slots=True)
class Action:
    """A step that was sampled in a state.

    Attributes:
        signal: What is asked about; any finite number.
        right: Right rollouts after the step.
        trials: Right and wrong rollouts after the step.
        value: Measured value: the estimate where a labeller gave one, else right / trials.
    """

    signal: float
    right: int
    trials: int
    value: float


@dataclass(frozen=True, slots=True)
class State:
    """A prefix with at least two different next steps.

    Attributes:
        problem_id: The problem: states of one problem are one cluster.
        num_steps: Steps before the choice.
        actions: The steps.
    """

    problem_id: str
    num_steps: int
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class QAlignment:
    """How well a signal orders sibling steps.

    Attributes:
        agreement: Share of pairs with different measured values that the signal orders alike, ties half,
            averaged within states, then over states. A constant signal has 1/2.
        ceiling: What a perfect signal would be expected to reach against these noisy values.
        rank_correlation: Spearman's, averaged over states where neither side is constant.
        num_states: States with at least one comparable pair.
        num_pairs: Comparable pairs.
        num_tied_pairs: Pairs left out because their measured values do not differ.
    """

    agreement: Measure
    ceiling: Measure
    rank_correlation: Measure
    num_states: int
    num_pairs: int
    num_tied_pairs: int


def sibling_states(
    solutions: Iterable[LabeledSolution], signals: Mapping[str, Sequence[float]], *, min_trials: int = 1
) -> list[State]:
    """The states of a labelled dataset that have siblings.

    Solutions of one problem meet in a state where they share the ids of their first t steps (their texts where
    no ids are known); at t = 0 all of them do. The same next step sampled twice is one action: its counts are
    taken together and its signals averaged.

    Args:
        solutions: Rows with counts.
        signals: For each solution id one number a step.
        min_trials: Actions with fewer right-or-wrong rollouts are left out.

    Raises:
        MissingItemsError: A solution has no signals.
        StepCountError: Another number of signals than steps.
        ScoreRangeError: A signal is not finite.
    """
    table: dict[tuple[str, tuple[object, ...]], dict[object, list[Action]]] = {}
    missing: list[str] = []
    for row in solutions:
        solution = row.solution
        given = signals.get(solution.id)
        if given is None:
            missing.append(solution.id)
            continue
        if len(given) != len(solution.steps):
            raise StepCountError(
                f"{solution.id}: {len(given)} signals for {len(solution.steps)} steps; one a step"
            )
        keys = [step.token_ids or step.text for step in solution.steps]
        for t, (key, signal) in enumerate(zip(keys, given, strict=True)):
            if not math.isfinite(signal):
                raise ScoreRangeError(f"{solution.id}, step {t}: signal {signal!r} is not finite")
            estimate = row.prefixes[t + 1]
            if estimate.counts.decided < min_trials:
                continue
            right, trials = estimate.counts.right, estimate.counts.decided
            value = estimate.value if estimate.value is not None else right / trials
            state = table.setdefault((row.problem.id, tuple(keys[:t])), {})
            state.setdefault(key, []).append(Action(float(signal), right, trials, value))
    if missing:
        raise MissingItemsError(
            "solutions without signals", missing, "score them, or hand in only scored solutions"
        )
    return [
        State(problem_id, len(prefix), tuple(_merged(same) for same in actions.values()))
        for (problem_id, prefix), actions in table.items()
        if len(actions) > 1
    ]


def _merged(same: Sequence[Action]) -> Action:
    """One action from several samplings of the same step: draws are pooled, values weighted by draws."""
    if len(same) == 1:
        return same[0]
    trials = sum(a.trials for a in same)
    return Action(
        sum(a.signal for a in same) / len(same),
        sum(a.right for a in same),
        trials,
        sum(a.value * a.trials for a in same) / trials,
    )


def q_alignment(
    states: Sequence[State], *, min_gap: float = 0.0, bootstrap: Bootstrap | None = None
) -> QAlignment:
    """Pairwise agreement and rank correlation within states.

    Args:
        states: See ``sibling_states``.
        min_gap: Pairs whose measured values differ by no more than this are left out.
        bootstrap: How intervals over problems are drawn.
    """
    bootstrap = bootstrap or Bootstrap()
    rows: list[tuple[str, float, float]] = []
    correlations: list[tuple[str, float]] = []
    pairs = tied = 0
    for state in states:
        agreements: list[float] = []
        ceilings: list[float] = []
        for i, a in enumerate(state.actions):
            for b in state.actions[i + 1 :]:
                if abs(a.value - b.value) <= min_gap:
                    tied += 1
                    continue
                better, worse = (a, b) if a.value > b.value else (b, a)
                agreements.append(0.5 if a.signal == b.signal else float(better.signal > worse.signal))
                ceilings.append(probability_greater(better, worse))
        if agreements:
            pairs += len(agreements)
            rows.append((state.problem_id, float(np.mean(agreements)), float(np.mean(ceilings))))
        correlation = spearman([x.signal for x in state.actions], [x.value for x in state.actions])
        if correlation is not None:
            correlations.append((state.problem_id, correlation))
    ids = [row[0] for row in rows]
    ones = np.ones(len(rows))
    return QAlignment(
        agreement=bootstrap_ratio(np.array([r[1] for r in rows]), ones, ids, bootstrap, "q_alignment"),
        ceiling=bootstrap_ratio(np.array([r[2] for r in rows]), ones, ids, bootstrap, "q_alignment"),
        rank_correlation=bootstrap_ratio(
            np.array([c for _, c in correlations]),
            np.ones(len(correlations)),
            [i for i, _ in correlations],
            bootstrap,
            "q_alignment",
        ),
        num_states=len(rows),
        num_pairs=pairs,
        num_tied_pairs=tied,
    )


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rank correlation with mean ranks for ties; None where a side is constant."""
    x, y = (_ranks(np.asarray(v, dtype=np.float64)) for v in (a, b))
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale if scale > 0 else None


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def probability_greater(a: Action, b: Action) -> float:
    """P(value of a > value of b) under independent Beta(right + 1, wrong + 1) posteriors.

    For integer parameters: sum over i < a1 of B(b1 + i, a2 + b2) / ((a2 + i) B(1 + i, a2) B(b1, b2)), where
    (a1, a2) and (b1, b2) are the parameters of a and b.
    """
    a1, a2 = a.right + 1, a.trials - a.right + 1
    b1, b2 = b.right + 1, b.trials - b.right + 1
    i = np.arange(a1)
    logs = [
        _log_beta(b1 + k, a2 + b2) - math.log(a2 + k) - _log_beta(1 + k, a2) - _log_beta(b1, b2)
        for k in i.tolist()
    ]
    return min(1.0, math.fsum(math.exp(value) for value in logs))


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
