"""Label rules over stored counts, as polars expressions: counts at prefixes -> step labels, no model, no loop.

Each rule reads the long table of ``relabel`` (one row a prefix) through a ``Reading`` and gives the label of the
step that ends there. It states for which allocations its counts mean what it takes them to mean; elsewhere the
labels are unknown. k/n of adaptively stopped sampling is never a label: there only posterior rules are valid.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepward.prm.types import Allocation

UNBIASED = frozenset({Allocation.FIXED_K, Allocation.DIFFICULTY_K, Allocation.TWO_FIDELITY})
"""Allocations whose number of draws at a prefix does not depend on what was drawn there."""

UNKNOWN = pl.lit(None, dtype=pl.Int8)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule may look at: expressions over the long table, one row a prefix t = 0..T of every solution.

    Attributes:
        right: k, draws with a right answer.
        trials: n, draws that count under the reading of truncated ones.
        value: MC_t = k/n; at prefix T the solution's own outcome; null where nothing was drawn.
        pass_rate: Share of right among the problem's known outcomes and its draws from the bare problem.
        step: t - 1, the index of the step that ends at this prefix.
        is_last: Whether t = T.
        too_truncated: More than a tenth of the draws were cut: no hard label rests on them.
        own: The solution's own outcome, 1, 0 or null.
        solution: Key of the solution, for ``.over``.
    """

    right: pl.Expr
    trials: pl.Expr
    value: pl.Expr
    pass_rate: pl.Expr
    step: pl.Expr
    is_last: pl.Expr
    too_truncated: pl.Expr
    own: pl.Expr
    solution: str = "solution"

    def usable(self, min_trials: float) -> pl.Expr:
        """Whether a hard label may rest on this prefix."""
        return self.is_last | ((self.trials >= min_trials) & ~self.too_truncated)

    def usable_value(self, min_trials: float) -> pl.Expr:
        """MC_t where a hard label may rest on it, else null."""
        return pl.when(self.usable(min_trials)).then(self.value)

    def before(self, value: pl.Expr) -> pl.Expr:
        """The value at the prefix before, null at prefix 0."""
        return pl.when(self.step >= 0).then(value.shift(1))


@dataclass(frozen=True, slots=True)
class LabelRule:
    """A rule by name.

    Attributes:
        name: Written into rows as the labeler's name.
        version: Changes when the same counts would give other labels.
        valid_for: Allocations whose counts it can read.
        options: Its options with their defaults.
        label: Label of each step (Int8, null = unknown).
        does: What it computes, for the documentation.
        value: Value of each prefix where it is not MC_t (or, where sampling stopped at a success, the mean of the
            Jeffreys posterior).
        in_both_readings: Under ``bounds`` a label stands only where both readings of draws without an answer give it.
        has_intervals: The interval of MC_t is one of the rule's value too.
    """

    name: str
    version: str
    valid_for: frozenset[Allocation]
    options: Mapping[str, float]
    label: Callable[[Reading, Mapping[str, float]], pl.Expr]
    does: str
    value: Callable[[Reading, Mapping[str, float]], pl.Expr] | None = None
    in_both_readings: bool = True
    has_intervals: bool = True


def _binary(yes: pl.Expr) -> pl.Expr:
    return yes.cast(pl.Int8)


def _where(known: pl.Expr, label: pl.Expr) -> pl.Expr:
    return pl.when(known).then(label).otherwise(UNKNOWN)


def _hard(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    enough = _where(r.usable(o["min_trials"]), pl.lit(0, pl.Int8))
    drawn = pl.when(r.right > 0).then(pl.lit(1, pl.Int8)).otherwise(enough)
    return pl.when(r.is_last).then(r.own).otherwise(_where(~r.too_truncated, drawn))


def _hard_k(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    drawn = _where(r.usable(o["min_trials"]), _binary(r.right >= o["min_right"]))
    return pl.when(r.is_last).then(r.own).otherwise(drawn)


def _soft_mean(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    above = _binary(r.usable_value(o["min_trials"]) > o["threshold"])
    return pl.when(r.is_last).then(r.own).otherwise(above)


def _posterior_value(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    mean = (r.right + o["a"]) / (r.trials + o["a"] + o["b"])
    drawn = pl.when(r.trials > 0).then(mean)
    return pl.when(r.is_last & r.own.is_not_null()).then(r.own.cast(pl.Float64)).otherwise(drawn)


def _posterior_mean(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    above = _where(r.usable(o["min_trials"]), _binary(_posterior_value(r, o) > o["threshold"]))
    return pl.when(r.is_last).then(r.own).otherwise(above)


def _relative_progress(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    value = r.usable_value(o["min_trials"])
    # GenPRM: once MC is 0 every step from there on is wrong, whatever is known of it.
    dead = (value == 0).fill_null(False).cum_max().over(r.solution)
    ratio = _binary(value >= o["threshold"] * r.before(value))
    return pl.when(dead).then(pl.lit(0, pl.Int8)).otherwise(ratio)


def _best_of_k(value: pl.Expr, k: float) -> pl.Expr:
    return 1 - (1 - value).pow(k)


def _progress_advantage(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    value = r.usable_value(o["min_trials"])
    advantage = _best_of_k(value, o["k"]) - _best_of_k(r.before(value), o["k"])
    return _binary(value + o["alpha"] * advantage > o["threshold"])


def _scan_error(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    """The first step after which MC is 0, unless a prefix before it is unknown."""
    value = r.usable_value(o["min_trials"])
    inside = r.step >= 0
    zero = pl.when(inside & (value == 0)).then(r.step).min().over(r.solution)
    unknown = pl.when(inside & value.is_null()).then(r.step).min().over(r.solution)
    return pl.when(unknown.is_null() | (zero < unknown)).then(zero)


def _scan_is_soft(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    error = _scan_error(r, o)
    return (r.own != 1).fill_null(True) & (r.step < error) & (r.step >= error - o["tolerance"])


def _scan(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    error = _scan_error(r, o)
    noisy = _where(_scan_value(r, o).fill_null(1.0) == 1, pl.lit(1, pl.Int8))
    of_wrong = (
        pl.when(r.step == error)
        .then(pl.lit(0, pl.Int8))
        .when(_scan_is_soft(r, o))
        .then(noisy)
        .when(r.step < error)
        .then(pl.lit(1, pl.Int8))
        .otherwise(UNKNOWN)
    )
    label = pl.when(r.own == 1).then(pl.lit(1, pl.Int8)).otherwise(of_wrong)
    return _where(r.pass_rate >= o["min_pass_rate"], label)


def _scan_value(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    # A soft target: MC relative to the pass rate of the problem, at most 1.
    relative = (r.value / r.pass_rate).clip(0, 1)
    value = pl.when(_scan_is_soft(r, o)).then(relative).otherwise(r.value)
    return pl.when(r.pass_rate >= o["min_pass_rate"]).then(value)


def _searched(r: Reading) -> pl.Expr:
    """The index of the first wrong step by binary search over the stored counts; null where the search is stuck."""
    state = (
        pl.when(r.right > 0)
        .then(pl.lit(1, pl.Int8))
        .when((r.trials > 0) & ~r.too_truncated)
        .then(pl.lit(0, pl.Int8))
        .otherwise(pl.lit(2, pl.Int8))
    )
    return pl.struct(state=state, step=r.step).map_batches(_binary_search, return_dtype=pl.Int64)


def _binary_search(prefixes: pl.Series) -> pl.Series:
    """Halve (lo, hi] of all solutions at once: 1 at the middle moves lo, 0 moves hi, 2 (not known) ends it."""
    state, step = (prefixes.struct.field(name).to_numpy() for name in ("state", "step"))
    start = np.flatnonzero(step == -1)
    num_prefixes = np.diff(np.append(start, len(step)))
    lo, hi = np.zeros_like(start), num_prefixes - 1
    stuck = hi == 0
    while (going := ~stuck & (hi - lo > 1)).any():
        middle = (lo + hi) // 2
        said = state[start + middle]
        stuck |= going & (said == 2)
        lo = np.where(going & (said == 1), middle, lo)
        hi = np.where(going & (said == 0), middle, hi)
    error = np.where(stuck, -1, hi - 1)
    return pl.Series(np.repeat(error, num_prefixes)).replace(-1, None)


def _omegaprm(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    error = _searched(r)
    until = (
        pl.when(r.step == error)
        .then(pl.lit(0, pl.Int8))
        .when(r.step < error)
        .then(pl.lit(1, pl.Int8))
        .otherwise(UNKNOWN)
    )
    return pl.when(r.own == 1).then(pl.lit(1, pl.Int8)).otherwise(_where(r.own == 0, until))


def _rest_value(r: Reading, o: Mapping[str, float]) -> pl.Expr:
    label = _hard(r, o).fill_null(-1)
    return pl.struct(label=label, step=r.step).map_batches(_quality, return_dtype=pl.Float64)


def _quality(prefixes: pl.Series) -> pl.Series:
    """v_k of all solutions, step by step: ReST-MCTS*, equations 1 to 3 (see ``estimators.rest_mcts``)."""
    label, step = (prefixes.struct.field(name).to_numpy() for name in ("label", "step"))
    start = np.flatnonzero(step == -1)
    num_steps = np.diff(np.append(start, len(step))) - 1
    value = np.zeros(len(step))
    for k in range(1, int(num_steps.max(initial=0)) + 1):
        at = start[num_steps >= k] + k
        left = num_steps[num_steps >= k] - k + 1
        gain = (1 - value[at - 1]) / left
        moved = np.maximum(0.0, value[at - 1] + np.where(label[at] == 1, gain, -gain))
        value[at] = np.where(label[at] < 0, np.nan, moved)
    return pl.Series(value, nan_to_null=True)


_ANY_RIGHT = UNBIASED | {Allocation.STOP_AT_FIRST_RIGHT}
_NO_CHOICE = frozenset({Allocation.FIXED_K, Allocation.DIFFICULTY_K})

RULES: dict[str, LabelRule] = {
    rule.name: rule
    for rule in (
        LabelRule(
            "hard", "2", _ANY_RIGHT, {"min_trials": 4}, _hard,
            "Math-Shepherd, hard: 1 where any draw is right, 0 where min_trials or more were all wrong.",
        ),
        LabelRule(
            "hard_k", "1", UNBIASED, {"min_right": 2, "min_trials": 4}, _hard_k,
            "1 where at least min_right draws are right, 0 where fewer of min_trials or more are.",
        ),
        LabelRule(
            "soft_mean", "1", UNBIASED, {"threshold": 0.0, "min_trials": 4}, _soft_mean,
            "Math-Shepherd, soft: the value is MC = k/n, the label 1 where it exceeds threshold.",
        ),
        LabelRule(
            "posterior_mean", "1", frozenset(Allocation),
            {"a": 0.5, "b": 0.5, "threshold": 0.25, "min_trials": 1}, _posterior_mean,
            "The value is (k + a)/(n + a + b), whatever stopped the sampling; the label 1 where it exceeds threshold.",
            _posterior_value,
        ),
        LabelRule(
            "relative_progress", "2", _NO_CHOICE, {"threshold": 0.8, "min_trials": 4}, _relative_progress,
            "GenPRM: 1 where MC_t / MC_{t-1} >= threshold, 0 after the first MC of 0.",
            in_both_readings=False,
        ),
        LabelRule(
            "progress_advantage", "2", _NO_CHOICE, {"k": 4, "alpha": 0.5, "threshold": 0.0, "min_trials": 1},
            _progress_advantage,
            "PAV with the best-of-k prover: 1 where MC_t + alpha (Q_t - Q_{t-1}) > threshold, Q = 1 - (1 - MC)^k.",
            in_both_readings=False,
        ),
        LabelRule(
            "scan", "2", frozenset({Allocation.FIXED_K}),
            {"min_pass_rate": 0.75, "tolerance": 2, "min_trials": 4}, _scan,
            "SCAN: problems with a pass rate of min_pass_rate or more; right solutions all 1; in wrong ones the first "
            "prefix of MC 0 is the error, the tolerance steps before it are soft (value = MC / pass rate, no label "
            "below 1), and solutions without such a prefix are unknown.",
            _scan_value, in_both_readings=False,
        ),
        LabelRule(
            "omegaprm", "1", frozenset({Allocation.BINARY_SEARCH, Allocation.FIXED_K}), {}, _omegaprm,
            "OmegaPRM: the binary search replayed on the counts; 1 before the first error, 0 at it, unknown after it; "
            "right solutions all 1.",
        ),
        LabelRule(
            "rest_mcts", "1", frozenset({Allocation.FIXED_K, Allocation.STOP_AT_FIRST_RIGHT}), {"min_trials": 4}, _hard,
            "ReST-MCTS*: labels as hard; the value is the quality v_k, which rises by (1 - v)/(steps left) after a "
            "right step and falls by as much after a wrong one, unknown from the first unknown step on.",
            _rest_value, has_intervals=False,
        ),
    )
}  # fmt: skip
"""All rules of ``stepward relabel`` by name."""
