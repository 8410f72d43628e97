"""The best-of-N family over stored samples: pass@k, majority, best-of-N and weighted majority, with intervals.

Samples are drawn once and stored; everything here is a function of them. An evaluation at N takes the first N
samples of seeded random orders of a problem's pool and averages over the orders, so that no lucky subset
decides.
All methods see the same orders, and differences against majority are paired by problem.

A sample without a final answer never votes and is never chosen, unless no sample has one; it counts as wrong,
being the policy's own doing. A sample whose outcome is a fault of ours leaves the pool and is counted.

pass@k: Chen et al., arXiv 2107.03374, equation 1. Majority: Wang et al., arXiv 2203.11171. Weighted majority:
Li et al., arXiv 2206.02336.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepward.prm.evaluation.aggregation import AGGREGATIONS, Aggregation, LearnedAggregation
from stepward.prm.evaluation.errors import EvaluationError, StepCountError, TunedOnTestError
from stepward.prm.evaluation.intervals import Bootstrap, Floats, Measure, bootstrap_ratio
from stepward.prm.evaluation.items import Scores, check_row, check_unique
from stepward.prm.evaluation.votes import Ints, best_is_right, ends_of, random_orders, total_at, vote_is_right
from stepward.prm.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class SamplePool:
    """The stored samples of one problem.

    Attributes:
        problem_id: The problem.
        classes: Number of the equivalence class of each sample's final answer; None = no answer.
        right: Whether the answer is right; None = not known (a fault of ours).
        tokens: Tokens generated for each sample.
        scores: Step scores of each sample, or empty where only pass@k and majority are asked for.
        scored_tokens: Tokens that the reward model read for each sample; ``tokens`` where empty.
    """

    problem_id: str
    classes: tuple[int | None, ...]
    right: tuple[bool | None, ...]
    tokens: tuple[int, ...]
    scores: tuple[Scores, ...] = ()
    scored_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.classes)
        lengths = {len(self.right), len(self.tokens), len(self.scores) or n, len(self.scored_tokens) or n}
        if lengths != {n} or n == 0:
            raise StepCountError(
                f"problem {self.problem_id}: {n} classes, {len(self.right)} outcomes, {len(self.tokens)} token "
                f"counts, {len(self.scores)} rows of scores; a pool has one of each a sample, and a sample at least"
            )
        for index, row in enumerate(self.scores):
            name = f"{self.problem_id}, sample {index}"
            if not row:
                raise StepCountError(f"{name} has no step scores; score it, or leave it out and say so")
            check_row(name, row)

    @property
    def decided(self) -> "SamplePool | None":
        """The pool without samples of unknown outcome, or None where none is left."""
        keep = [i for i, right in enumerate(self.right) if right is not None]
        if len(keep) == len(self.right):
            return self
        if not keep:
            return None
        return SamplePool(
            self.problem_id,
            tuple(self.classes[i] for i in keep),
            tuple(self.right[i] for i in keep),
            tuple(self.tokens[i] for i in keep),
            tuple(self.scores[i] for i in keep) if self.scores else (),
            tuple(self.scored_tokens[i] for i in keep) if self.scored_tokens else (),
        )


def classes_by_key(answers: Sequence[str | None], key: Callable[[str], Hashable]) -> tuple[int | None, ...]:
    """Class numbers of answers with equal keys, in order of first appearance; None stays None."""
    number: dict[Hashable, int] = {}
    return tuple(None if a is None else number.setdefault(key(a), len(number)) for a in answers)


def classes_by_test(
    answers: Sequence[str | None], same: Callable[[str, str], bool]
) -> tuple[int | None, ...]:
    """Class numbers by a pairwise test: an answer joins the first class whose first member it equals."""
    founders: list[str] = []
    classes: list[int | None] = []
    for answer in answers:
        if answer is None:
            classes.append(None)
            continue
        found = next((i for i, f in enumerate(founders) if f == answer), None)
        if found is None:
            found = next((i for i, f in enumerate(founders) if same(f, answer)), None)
        if found is None:
            found = len(founders)
            founders.append(answer)
        classes.append(found)
    return tuple(classes)


def pass_at_k(num_samples: int, num_right: int, k: int) -> float | None:
    """Unbiased probability that one of k samples is right: 1 - C(n - c, k) / C(n, k).

    Returns:
        The probability, or None where k > n: it cannot be estimated without bias.
    """
    if not 0 <= num_right <= num_samples or k < 1:
        raise ValueError(
            f"pass@{k} of {num_right} right in {num_samples}: need 0 <= right <= samples and k >= 1"
        )
    if k > num_samples:
        return None
    if num_samples - num_right < k:
        return 1.0
    i = np.arange(num_samples - num_right + 1, num_samples + 1)
    return float(1.0 - np.prod(1.0 - k / i))


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One method at one N or one token budget.

    Attributes:
        method: ``majority``, ``best_of_n[rule]`` or ``weighted_majority[rule]``.
        cut: N, or the token budget a problem.
        accuracy: Over problems.
        over_majority: Accuracy minus majority's at the same cut, paired by problem.
        num_samples: Samples used, mean over problems and orders.
        generated_tokens: Tokens generated a problem, mean.
        scored_tokens: Tokens read by the reward model a problem, mean; 0 for majority.
    """

    method: str
    cut: int
    accuracy: Measure
    over_majority: Measure
    num_samples: float
    generated_tokens: float
    scored_tokens: float


@dataclass(frozen=True, slots=True)
class BestOfNResult:
    """Curves of all methods.

    Attributes:
        cut_by: ``samples`` or ``tokens``.
        points: Every method at every cut.
        pass_at_k: Unbiased pass@k by k, over the problems with at least k samples.
        num_problems: Problems evaluated.
        num_problems_left_out: Problems with fewer decided samples than the largest N (or none at all).
        num_samples_left_out: Samples of unknown outcome.
        num_split_classes: Answer classes that hold both right and wrong samples: the equivalence and the
            grading disagree there, and the class counts as its first sample does.
        cuts: The cuts asked for.
        problem_ids: The problems evaluated.
        accuracies: Shape [problems, cuts] by method, in the order of ``problem_ids`` and ``cuts``: from these
            the points follow, and two results are compared pair by pair.
    """

    cut_by: str
    points: tuple[CurvePoint, ...]
    pass_at_k: dict[int, Measure]
    num_problems: int
    num_problems_left_out: int
    num_samples_left_out: int
    num_split_classes: int
    cuts: tuple[int, ...]
    problem_ids: tuple[str, ...]
    accuracies: dict[str, Floats]


def evaluate_pools(
    pools: Sequence[SamplePool],
    cuts: Sequence[int],
    *,
    cut_by: str = "samples",
    aggregations: Mapping[str, Aggregation] = AGGREGATIONS,
    num_orders: int = 32,
    seed: int = 0,
    bootstrap: Bootstrap | None = None,
) -> BestOfNResult:
    """Accuracy of every method at every cut.

    Args:
        pools: One a problem.
        cuts: Values of N, or token budgets a problem. A budget is never exceeded: generated tokens for
            majority, generated plus scored tokens for methods that need the reward model.
        cut_by: ``samples`` or ``tokens``.
        aggregations: Rules by name; a ``LearnedAggregation`` may be among them.
        num_orders: Random orders of each pool that are averaged.
        seed: Seed of the orders and of broken ties.
        bootstrap: How intervals over problems are drawn.

    Raises:
        DoubledItemsError: A problem twice.
        TunedOnTestError: A learned aggregation saw a problem that is to be evaluated.
        EvaluationError: No problem has enough decided samples.
    """
    if cut_by not in ("samples", "tokens") or not cuts or min(cuts) < 1 or num_orders < 1:
        raise ValueError(
            f"cut_by={cut_by!r}, cuts={list(cuts)}, num_orders={num_orders}: say 'samples' or 'tokens', give "
            "positive cuts and at least one order"
        )
    check_unique(pool.problem_id for pool in pools)
    _refuse_learned(pools, aggregations)
    bootstrap = bootstrap or Bootstrap()
    least = max(cuts) if cut_by == "samples" else 1
    kept = [d for d in (pool.decided for pool in pools) if d is not None and len(d.classes) >= least]
    if not kept:
        raise EvaluationError(
            f"none of {len(pools)} problems has {least} samples of known outcome; draw more, or ask for smaller N"
        )
    scored = all(pool.scores for pool in kept)
    if not scored and any(pool.scores for pool in kept):
        odd = next(pool.problem_id for pool in kept if not pool.scores)
        raise StepCountError(f"problem {odd} has no step scores while others have; score all pools or none")
    methods = [
        "majority",
        *(f"{m}[{r}]" for m in ("best_of_n", "weighted_majority") for r in aggregations if scored),
    ]
    tables = {m: np.zeros((len(kept), len(cuts), 4)) for m in methods}
    for row, pool in enumerate(kept):
        for method, table in _evaluate_pool(
            pool, cuts, cut_by, aggregations if scored else {}, num_orders, seed
        ):
            tables[method][row] = table
    ids = [pool.problem_id for pool in kept]
    return BestOfNResult(
        cut_by=cut_by,
        points=tuple(
            _point(m, c, cut, tables[m], tables["majority"], ids, bootstrap)
            for m in methods
            for c, cut in enumerate(cuts)
        ),
        pass_at_k=_pass_at_ks(kept, cuts if cut_by == "samples" else (1,), bootstrap),
        num_problems=len(kept),
        num_problems_left_out=len(pools) - len(kept),
        num_samples_left_out=sum(right is None for pool in pools for right in pool.right),
        num_split_classes=sum(_num_split(pool) for pool in kept),
        cuts=tuple(cuts),
        problem_ids=tuple(ids),
        accuracies={m: tables[m][:, :, 0] for m in methods},
    )


def _refuse_learned(pools: Sequence[SamplePool], aggregations: Mapping[str, Aggregation]) -> None:
    for name, rule in aggregations.items():
        seen = (
            [p.problem_id for p in pools if p.problem_id in rule.problems]
            if isinstance(rule, LearnedAggregation)
            else []
        )
        if seen:
            raise TunedOnTestError(
                f"aggregation {name!r} was fitted on {len(seen)} of the problems to be evaluated (such as "
                f"{seen[0]}); fit it on others"
            )


def _evaluate_pool(
    pool: SamplePool,
    cuts: Sequence[int],
    cut_by: str,
    aggregations: Mapping[str, Aggregation],
    num_orders: int,
    seed: int,
) -> list[tuple[str, Floats]]:
    """Accuracy, samples, generated and scored tokens at each cut, shape [cuts, 4], by method."""
    rng = np.random.default_rng(derive_seed(seed, "best_of_n", pool.problem_id))
    n = len(pool.classes)
    orders = random_orders(n, num_orders, rng)
    sample_ties, class_ties = rng.random((num_orders, n)), rng.random((num_orders, n))
    right = np.array([bool(r) for r in pool.right])
    classes = np.array([-1 if c is None else c for c in pool.classes])
    generated = np.array(pool.tokens)[orders].cumsum(axis=1)
    read = np.array(pool.scored_tokens or pool.tokens)[orders].cumsum(axis=1)

    def row(hit: NDArray[np.bool_], ends: Ints, *, paid: bool) -> Floats:
        spent = [total_at(counts, ends) for counts in (generated, read)]
        columns = (hit, ends, spent[0], spent[1] if paid else np.zeros_like(spent[1]))
        return np.stack([np.asarray(c, dtype=np.float64).mean(axis=0) for c in columns], axis=1)

    free = ends_of(generated, cuts, cut_by)
    hit = vote_is_right(orders, classes, np.ones(n), right, free, class_ties)
    rows = [("majority", row(hit, free, paid=False))]
    paid = ends_of(generated + read, cuts, cut_by)
    for name, rule in aggregations.items():
        values = np.array([rule(scores) for scores in pool.scores])
        hit = best_is_right(orders, classes, values, right, paid, sample_ties)
        rows.append((f"best_of_n[{name}]", row(hit, paid, paid=True)))
        hit = vote_is_right(orders, classes, values, right, paid, class_ties)
        rows.append((f"weighted_majority[{name}]", row(hit, paid, paid=True)))
    return rows


def _point(
    method: str, c: int, cut: int, table: Floats, majority: Floats, ids: Sequence[str], bootstrap: Bootstrap
) -> CurvePoint:
    ones = np.ones(len(ids))
    samples, generated, scored = (float(table[:, c, k].mean()) for k in (1, 2, 3))
    gain = table[:, c, 0] - majority[:, c, 0]
    # One stream for all: every method sees the same resampled problems.
    return CurvePoint(
        method,
        cut,
        bootstrap_ratio(table[:, c, 0], ones, ids, bootstrap, "best_of_n"),
        bootstrap_ratio(gain, ones, ids, bootstrap, "best_of_n"),
        samples,
        generated,
        scored,
    )


def _pass_at_ks(pools: Sequence[SamplePool], ks: Sequence[int], bootstrap: Bootstrap) -> dict[int, Measure]:
    out: dict[int, Measure] = {}
    for k in ks:
        values = {p.problem_id: pass_at_k(len(p.right), sum(r is True for r in p.right), k) for p in pools}
        known = {i: v for i, v in values.items() if v is not None}
        numbers = np.array(list(known.values()), dtype=np.float64)
        out[k] = bootstrap_ratio(numbers, np.ones(len(known)), list(known), bootstrap, "best_of_n")
    return out


def _num_split(pool: SamplePool) -> int:
    seen: dict[int, set[bool]] = {}
    for name, right in zip(pool.classes, pool.right, strict=True):
        if name is not None:
            seen.setdefault(name, set()).add(bool(right))
    return sum(len(kinds) > 1 for kinds in seen.values())
