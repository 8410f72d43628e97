"""Intervals: the seeded cluster bootstrap for ratios of sums, and Wilson's interval for a plain proportion.

Every measure of this package is a function of a few sums over items (hits, items, ...). A resample draws
clusters with replacement, so its sums are one matrix product of draw counts and cluster sums; nothing is
evaluated item by item. Items of one problem form one cluster: several solutions of a problem are not
independent, and taking them as such makes intervals too narrow.

Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 13.3 (percentile interval); Wilson,
JASA 22 (1927).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from stepward.prm.seeds import derive_seed

Floats = NDArray[np.float64]

LEVEL = 0.95
NUM_RESAMPLES = 2000
_BLOCK = 4_000_000


@dataclass(frozen=True, slots=True)
class Measure:
    """A number with its interval, or the reason why there is none.

    Attributes:
        value: The point estimate, or None where it is undefined.
        low: Lower end of the interval, or None where it is undefined.
        high: Upper end.
        n: How many items it rests on.
        note: Why the value is undefined, or how many resamples were.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    note: str = ""

    def __str__(self) -> str:
        if self.value is None:
            return f"undefined ({self.note})"
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How intervals are drawn; the same settings give the same intervals.

    Attributes:
        num_resamples: 0 leaves all intervals out.
        seed: Seed of the draws.
        level: Coverage aimed at, in (0, 1).
    """

    num_resamples: int = NUM_RESAMPLES
    seed: int = 0
    level: float = LEVEL

    def __post_init__(self) -> None:
        if self.num_resamples < 0 or not 0 < self.level < 1:
            raise ValueError(
                f"bootstrap with num_resamples={self.num_resamples}, level={self.level}: "
                "num_resamples must be >= 0 and level in (0, 1)"
            )


def cluster_sums(values: Floats, clusters: Sequence[str]) -> Floats:
    """Sums of the rows of each cluster.

    Args:
        values: Shape [items, columns].
        clusters: Name of each item's cluster, length ``items``.

    Returns:
        Shape [clusters, columns], in order of first appearance.
    """
    number: dict[str, int] = {}
    index = np.fromiter((number.setdefault(c, len(number)) for c in clusters), dtype=np.int64)
    if len(index) != len(values):
        raise ValueError(f"{len(values)} rows of values but {len(index)} cluster names; they must be as many")
    sums = np.zeros((len(number), values.shape[1]))
    np.add.at(sums, index, values)
    return sums


def resampled_sums(sums: Floats, bootstrap: Bootstrap, *stream: str) -> Floats:
    """Sums over all items in each resample of clusters.

    Args:
        sums: Shape [clusters, columns], from ``cluster_sums``.
        bootstrap: Number of resamples and seed.
        stream: Names the draw, so that strata (such as subsets) are drawn independently of each other
            while two scorers on the same stratum share their draws.

    Returns:
        Shape [resamples, columns].
    """
    num_clusters = len(sums)
    out = np.zeros((bootstrap.num_resamples, sums.shape[1]))
    if num_clusters == 0:
        return out
    rng = np.random.default_rng(derive_seed(bootstrap.seed, "bootstrap", *stream))
    block = max(1, _BLOCK // num_clusters)
    shares = np.full(num_clusters, 1.0 / num_clusters)
    for start in range(0, bootstrap.num_resamples, block):
        stop = min(start + block, bootstrap.num_resamples)
        draws = rng.multinomial(num_clusters, shares, size=stop - start).astype(np.float64)
        out[start:stop] = draws @ sums
    return out


def measure(
    point: float | None, resampled: Floats, *, n: int, level: float = LEVEL, note: str = ""
) -> Measure:
    """A point estimate with the percentile interval of its resamples.

    Args:
        point: The estimate, or None where it is undefined.
        resampled: The estimate in each resample, NaN where it is undefined there.
        n: Items behind it.
        level: Coverage aimed at.
        note: Why the point is undefined, if it is.
    """
    if point is None or math.isnan(point):
        return Measure(None, n=n, note=note or "undefined")
    defined = resampled[~np.isnan(resampled)]
    if len(defined) == 0:
        return Measure(float(point), n=n, note=note)
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    missing = len(resampled) - len(defined)
    if missing:
        note = f"{note}; " if note else ""
        note += f"undefined in {missing} of {len(resampled)} resamples, which are left out"
    return Measure(float(point), float(low), float(high), n, note)


def bootstrap_ratio(
    numerator: Floats, denominator: Floats, clusters: Sequence[str], bootstrap: Bootstrap, *stream: str
) -> Measure:
    """sum(numerator) / sum(denominator) with its cluster-bootstrap interval.

    Args:
        numerator: Shape [items].
        denominator: Shape [items]; ones for a plain mean.
        clusters: Cluster of each item.
        bootstrap: Settings.
        stream: Names the draw.
    """
    sums = cluster_sums(np.column_stack([numerator, denominator]).astype(np.float64), clusters)
    total = sums.sum(axis=0)
    n = int(np.count_nonzero(denominator))
    point = float(total[0] / total[1]) if total[1] else None
    draws = resampled_sums(sums, bootstrap, *stream)
    note = "no items" if point is None else ""
    return measure(point, divide(draws[:, 0], draws[:, 1]), n=n, level=bootstrap.level, note=note)


def bootstrap_statistic(
    statistic: Callable[[Floats], float | None],
    clusters: Sequence[str],
    bootstrap: Bootstrap,
    *stream: str,
    note: str = "",
) -> Measure:
    """Any weighted statistic of items with its cluster-bootstrap interval, for what is no ratio of sums.

    Args:
        statistic: From item weights, shape [items] (how often the item was drawn; ones for the point estimate),
            to a number, or None where it is undefined.
        clusters: Cluster of each item.
        bootstrap: Settings; the cost is one call a resample.
        stream: Names the draw.
        note: Why the statistic may be undefined.
    """
    number: dict[str, int] = {}
    index = np.fromiter((number.setdefault(c, len(number)) for c in clusters), dtype=np.int64)
    point = statistic(np.ones(len(index))) if len(index) else None
    rng = np.random.default_rng(derive_seed(bootstrap.seed, "bootstrap", *stream))
    resampled = np.full(bootstrap.num_resamples, np.nan)
    if point is not None:
        shares = np.full(len(number), 1.0 / len(number))
        for r in range(bootstrap.num_resamples):
            value = statistic(rng.multinomial(len(number), shares)[index].astype(np.float64))
            resampled[r] = np.nan if value is None else value
    note = note if point is None else ""
    return measure(point, resampled, n=len(clusters), level=bootstrap.level, note=note)


def divide(numerator: Floats, denominator: Floats) -> Floats:
    """Elementwise quotient, NaN where the denominator is 0: undefined, not 0."""
    out = np.full(np.broadcast(numerator, denominator).shape, np.nan)
    np.divide(numerator, denominator, out=out, where=denominator != 0)
    return out


def wilson(hits: int, trials: int, level: float = LEVEL) -> Measure:
    """Wilson's score interval for a proportion of independent trials.

    Raises:
        ValueError: ``hits`` is not in [0, trials].
    """
    if not 0 <= hits <= trials:
        raise ValueError(f"{hits} hits in {trials} trials: hits must lie in [0, trials]")
    if trials == 0:
        return Measure(None, n=0, note="no trials")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = hits / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return Measure(p, max(0.0, centre - half), min(1.0, centre + half), trials)


def widen_at_bound(given: Measure, trials: int, level: float = LEVEL) -> Measure:
    """Wilson's interval in place of the bootstrap's where a proportion is 0 or 1.

    Where all items agree every resample agrees too, and the bootstrap's interval has no width whatever the
    number of items.

    Args:
        given: A proportion with its bootstrap interval.
        trials: Independent units behind it (problems, not items).
        level: Coverage aimed at.
    """
    if given.value not in (0.0, 1.0) or given.low is None or trials == 0:
        return given
    bound = wilson(round(given.value * trials), trials, level)
    return Measure(given.value, bound.low, bound.high, given.n, "all items agree: Wilson's interval")
