"""Methods over a log of rollouts: the package's own rules ask, the log answers, each of its rollouts once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import THRESHOLDS
from stepward.flows.machine_checked import true_first_error
from stepward.labeling.allocation.equal_states import EqualStatesOnce, merged
from stepward.labeling.allocation.fixed_k import FixedK
from stepward.labeling.allocation.information_gain import InformationGain
from stepward.labeling.changepoint.fast import readings
from stepward.labeling.changepoint.grid import make_grid
from stepward.labeling.changepoint.problem import posteriors
from stepward.labeling.estimators.registry import make_estimator
from stepward.labeling.evidence import AllocationRule, Draw, LabelingConstants, SolutionEvidence, prefix_nodes
from stepward.prm.dataset.store import open_dataset
from stepward.prm.types import Counts, LabeledSolution, Outcome, Rollout


@dataclass(frozen=True, slots=True)
class Logged:
    """A solution of T steps and what was logged at its prefixes.

    Attributes:
        num_steps: T.
        step_tokens: Tokens of each step.
        outcome: Its own outcome.
        first_error: c in 1..T+1 by the machine check, T+1 = none.
        outcomes, tokens: Of the logged rollouts at the prefixes 0..T; prefix 0 is logged for one solution a problem.
        nodes: The state that each prefix is (``prefix_nodes``).
    """

    num_steps: int
    step_tokens: tuple[int, ...]
    outcome: Outcome
    first_error: int
    outcomes: tuple[tuple[Outcome, ...], ...]
    tokens: tuple[tuple[int, ...], ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Labeled:
    """What a method gave at each level (prices; one where it has none), [levels, n].

    Attributes:
        predicted: Decoded c.
        tokens, rollouts: Spent.
        confidence: P(c = predicted), NaN where the method has none.
        value_mse: Mean over prefixes 1..T-1 of (estimate - V)^2, V = mean of the rollouts that were not drawn, less
            that mean's own sampling variance; NaN where there is no estimate.
        theta: Posterior over the grid, [n, P], where the method reads it, else empty.
    """

    predicted: NDArray[np.int64]
    tokens: NDArray[np.float64]
    rollouts: NDArray[np.float64]
    confidence: NDArray[np.float64]
    value_mse: NDArray[np.float64]
    theta: NDArray[np.float64]


def read_log(folder: Path) -> list[list[Logged]]:
    """The solutions of each problem of a log; of an unfinished one what is there."""
    dataset = open_dataset(folder, partial=True)
    rollouts: dict[str, list[Rollout]] = {}
    for solution_id, rollout in dataset.rollouts():
        rollouts.setdefault(solution_id, []).append(rollout)
    rows: dict[str, list[LabeledSolution]] = {}
    for row in dataset.solutions():
        rows.setdefault(row.problem.id, []).append(row)
    problems: dict[str, list[Logged]] = {}
    for row, nodes in (
        pair
        for found in rows.values()
        for pair in zip(
            found, prefix_nodes([[s.token_ids for s in r.solution.steps] for r in found]), strict=True
        )
    ):
        steps, own = row.solution.steps, row.solution.seed
        drawn = sorted(
            (r for r in rollouts.get(row.solution.id, ()) if not (r.num_steps == 0 and r.seed == own)),
            key=lambda r: r.index,
        )
        at = [[r for r in drawn if r.num_steps == t] for t in range(len(steps) + 1)]
        truth = true_first_error(row)
        problems.setdefault(row.problem.id, []).append(
            Logged(
                len(steps),
                tuple(len(s.token_ids) for s in steps),
                row.solution.outcome or Outcome.ERROR,
                len(steps) + 1 if truth is None else truth + 1,
                tuple(tuple(r.outcome or Outcome.ERROR for r in each) for each in at),
                tuple(tuple(len(r.token_ids) for r in each) for each in at),
                nodes,
            )
        )
    return list(problems.values())


class Replay:
    """One problem's solutions while a method draws from their log, in an order that the seed says.

    Args:
        problem: The solutions.
        number: The problem's number, which goes into the order.
        seed: The replay.
        share: Let methods know which prefixes are one state.
    """

    def __init__(self, problem: Sequence[Logged], number: int, seed: int, *, share: bool = True) -> None:
        self.problem = problem
        rng = np.random.default_rng([seed, number, 606])
        self.order = [[rng.permutation(len(o)) for o in s.outcomes] for s in problem]
        self.draws = [[[] for _ in s.outcomes] for s in problem]
        self.tokens = np.zeros(len(problem))
        self.rollouts = np.zeros(len(problem))
        self.evidence = [
            SolutionEvidence(
                s.num_steps,
                s.step_tokens,
                s.outcome,
                ((),) * (s.num_steps + 1),
                nodes=s.nodes if share else (),
            )
            for s in problem
        ]

    def draw(self, asked: Sequence[Draw]) -> bool:
        """Serve draws; whether any could be served."""
        served = False
        for draw in asked:
            solution, at = self.problem[draw.solution], self.draws[draw.solution][draw.prefix]
            if len(at) == len(solution.outcomes[draw.prefix]):
                continue
            which = self.order[draw.solution][draw.prefix][len(at)]
            at.append(solution.outcomes[draw.prefix][which])
            self.tokens[draw.solution] += solution.tokens[draw.prefix][which]
            self.rollouts[draw.solution] += 1
            served = True
        for number in {draw.solution for draw in asked}:
            draws = tuple(map(tuple, self.draws[number]))
            self.evidence[number] = replace(self.evidence[number], draws=draws)
        return served

    def follow(self, rule: AllocationRule) -> None:
        """Draw until the rule asks for no more or the log has no more of what it asks."""
        while (asked := rule.next_draws(self.evidence)) and self.draw(asked):
            pass

    def value_error(self, number: int, estimates: Sequence[float | None]) -> float:
        """See ``Labeled.value_mse``; ``estimates`` of the prefixes 0..T."""
        solution, errors = self.problem[number], []
        for t in range(1, solution.num_steps):
            left = self.order[number][t][len(self.draws[number][t]) :]
            kept = [solution.outcomes[t][i] for i in left]
            right, estimate = kept.count(Outcome.RIGHT), estimates[t]
            decided = right + kept.count(Outcome.WRONG)
            if decided < 2 or estimate is None:
                continue
            mean = right / decided
            errors.append((estimate - mean) ** 2 - mean * (1 - mean) / (decided - 1))
        return float(np.mean(errors)) if errors else float("nan")


def read_posterior(
    replay: Replay, found: Sequence[tuple[NDArray[np.floating], NDArray[np.floating]]]
) -> tuple[list[int], list[float], list[float]]:
    """(predicted c, P(c = it), error of V) of each solution from its P(c > t) and E[V_t].

    Ties go to none, as in the package.
    """
    predicted, confidence, errors = [], [], []
    for number, (p_right, value) in enumerate(found):
        steps = replay.problem[number].num_steps
        p = np.append(np.maximum(p_right[:-1] - p_right[1:], 0.0), p_right[-1])
        choice = int(np.argmax(p[:steps]))
        choice = choice if p[choice] > p[steps] else steps
        predicted.append(choice + 1)
        confidence.append(float(p[choice]))
        errors.append(replay.value_error(number, value.tolist()))
    return predicted, confidence, errors


def active_curve(
    problems: Sequence[Sequence[Logged]],
    prices: NDArray[np.float64],
    constants: LabelingConstants,
    *,
    pool: bool,
    seed: int,
    overhead: float = 0.0,
    share: bool = True,
) -> Labeled:
    """Change-point posterior with information gain at falling prices: one replay serves them all."""
    grid = make_grid(constants.axis_weights, axis_points=constants.axis_points)
    rules = [
        InformationGain(replace(constants, price=float(p)), pool, overhead_tokens=overhead, compiled=True)
        for p in prices
    ]
    parts: list[tuple[list[list[float]], ...]] = []
    for number, problem in enumerate(problems):
        replay = Replay(problem, number, seed, share=share)
        rows: tuple[list[list[float]], ...] = ([], [], [], [], [])
        before, read = -1.0, ([], [], [])
        for rule in rules:
            replay.follow(rule)
            if replay.rollouts.sum() != before:
                before = replay.rollouts.sum()
                found = readings(
                    replay.evidence, grid, pool=pool, unfinished_as_wrong=False, precision={}, recall={}
                )
                read = read_posterior(replay, [each[1:] for each in found])
            for row, values in zip(
                rows, (*read, replay.tokens.tolist(), replay.rollouts.tolist()), strict=True
            ):
                row.append(list(values))
        parts.append(rows)
    predicted, confidence, errors, tokens, rollouts = (
        np.concatenate([np.array(part[i]) for part in parts], axis=1) for i in range(5)
    )
    return Labeled(predicted.astype(np.int64), tokens, rollouts, confidence, errors, np.empty(0))


def decoded(
    problems: Sequence[Sequence[Logged]],
    rule: AllocationRule,
    constants: LabelingConstants,
    *,
    pool: bool,
    seed: int,
    share: bool = True,
) -> Labeled:
    """Another allocation's rollouts under our decoder."""
    grid = make_grid(constants.axis_weights, axis_points=constants.axis_points)
    columns, theta = ([], [], [], [], []), []
    for number, problem in enumerate(problems):
        replay = Replay(problem, number, seed, share=share)
        replay.follow(rule)
        found = posteriors(replay.evidence, grid, pool=pool)
        theta += [p.theta for p in found]
        read = read_posterior(replay, [(p.p_right, p.value) for p in found])
        for column, values in zip(columns, (*read, replay.tokens, replay.rollouts), strict=True):
            column += list(values)
    predicted, confidence, errors, tokens, rollouts = (np.array(c)[None] for c in columns)
    return Labeled(predicted, tokens, rollouts, confidence, errors, np.array(theta))


def by_rule(
    problems: Sequence[Sequence[Logged]],
    rule: AllocationRule,
    labeler: str,
    *,
    seed: int,
    once: bool = False,
    **options: object,
) -> Labeled:
    """A registered estimator on a rule's rollouts. What it leaves undecided counts as "no step is wrong".

    ``once``: as a method that knows equal states (``EqualStatesOnce``); else each solution by itself, as the papers.
    """
    estimator = make_estimator(labeler, allocation=rule.kind, truncated_as="wrong", **options)
    predicted, errors, tokens, rollouts = [], [], [], []
    for number, problem in enumerate(problems):
        replay = Replay(problem, number, seed)
        replay.follow(EqualStatesOnce(rule) if once else rule)
        seen = merged(replay.evidence) if once else replay.evidence
        counts = [counts_of(problem, i, e) for i, e in enumerate(seen)]
        for i, labels in enumerate(estimator.estimate(seen, counts)):
            steps = problem[i].num_steps
            predicted.append(steps + 1 if labels.first_error is None else labels.first_error + 1)
            errors.append(replay.value_error(i, [e.value for e in labels.estimates]))
        tokens += replay.tokens.tolist()
        rollouts += replay.rollouts.tolist()
    unknown = np.full((1, len(predicted)), np.nan)
    return Labeled(
        np.array(predicted)[None], np.array(tokens)[None], np.array(rollouts)[None], unknown, np.array(errors)[None],
        np.empty(0),
    )  # fmt: skip


def counts_of(problem: Sequence[Logged], number: int, evidence: SolutionEvidence) -> list[Counts]:
    """The counts that a row would hold: draws, the problem's outcomes at prefix 0, its own at T."""
    counts = []
    for t, draws in enumerate(evidence.draws):
        told = list(draws)
        told += [s.outcome for s in problem] if t == 0 else []
        told += [problem[number].outcome] if t == problem[number].num_steps else []
        tally = {o.value: told.count(o) for o in set(told)}
        counts.append(Counts(**tally, n_unique=len(told)))
    return counts


def soft_threshold(pilot: Sequence[Sequence[Logged]]) -> float:
    """The soft rule's threshold of the best F1 on the pilot."""

    def score(threshold: float) -> float:
        found = by_rule(pilot, FixedK(8), "math_shepherd_soft", seed=99, threshold=threshold).predicted[0]
        truth = np.array([s.first_error for p in pilot for s in p])
        wrong = truth <= np.array([s.num_steps for p in pilot for s in p])
        hit = found == truth
        a, b = hit[wrong].mean(), hit[~wrong].mean()
        return float(2 * a * b / max(a + b, 1e-12))

    return max(map(float, THRESHOLDS), key=score)
