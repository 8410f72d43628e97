"""pass@k, votes and best-of-N over stored samples, by hand and by brute force."""

import json
import math
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepward.prm.evaluation.aggregation import AGGREGATIONS, features, learn_aggregation, product
from stepward.prm.evaluation.best_of_n import (
    SamplePool,
    classes_by_key,
    classes_by_test,
    evaluate_pools,
    pass_at_k,
)
from stepward.prm.evaluation.errors import (
    DoubledItemsError,
    EmptySideError,
    EvaluationError,
    ScoreRangeError,
    StepCountError,
    TunedOnTestError,
)
from stepward.prm.evaluation.intervals import Bootstrap

NONE = Bootstrap(num_resamples=0)


def point(result, method: str, cut: int):
    return next(p for p in result.points if p.method == method and p.cut == cut)


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    right = [i < c for i in range(n)]
    share = sum(any(right[i] for i in subset) for subset in combinations(range(n), k)) / comb(n, k)
    assert pass_at_k(n, c, k) == pytest.approx(share, abs=1e-12)


def test_pass_at_k_beyond_the_samples_is_unknown_not_the_biased_value() -> None:
    assert pass_at_k(8, 2, 9) is None
    with pytest.raises(ValueError, match="0 <= right"):
        pass_at_k(4, 5, 1)


def test_pass_at_k_of_a_million_samples_does_not_overflow() -> None:
    # 1 - C(n - c, 1) / C(n, 1) = c / n
    assert pass_at_k(1_000_000, 10, 1) == pytest.approx(1e-5)


# Five samples: answers 0 0 1 1 2, class 1 is right. Scores by sample (min / last):
POOL = SamplePool(
    "p",
    classes=(0, 0, 1, 1, 2),
    right=(False, False, True, True, False),
    tokens=(10, 20, 30, 40, 50),
    scores=((0.9, 0.2), (0.5, 0.3), (0.6, 0.7), (0.8, 0.1), (0.4, 0.9)),
)


def test_votes_and_best_of_n_over_all_samples_by_hand() -> None:
    result = evaluate_pools([POOL], [5], num_orders=400, bootstrap=NONE)
    # Majority: 0 and 1 tie with two votes each, so half of the orders are right.
    assert point(result, "majority", 5).accuracy.value == pytest.approx(0.5, abs=0.1)
    # min: .2 .3 .6 .1 .4: best is sample 2 (right); sums .5 .7 .4: class 1
    assert point(result, "best_of_n[min]", 5).accuracy.value == 1.0
    assert point(result, "weighted_majority[min]", 5).accuracy.value == 1.0
    # last: .2 .3 .7 .1 .9: best is sample 4 (wrong); sums .5 .8 .9: class 2
    assert point(result, "best_of_n[last]", 5).accuracy.value == 0.0
    assert point(result, "weighted_majority[last]", 5).accuracy.value == 0.0
    # product: .18 .15 .42 .08 .36: sample 2; sums .33 .50 .36: class 1
    assert point(result, "best_of_n[product]", 5).accuracy.value == 1.0
    assert point(result, "weighted_majority[product]", 5).accuracy.value == 1.0
    # mean: .55 .4 .65 .45 .65: samples 2 and 4 tie; sums .95 1.1 .65: class 1
    assert point(result, "best_of_n[mean]", 5).accuracy.value == pytest.approx(0.5, abs=0.1)
    assert point(result, "weighted_majority[mean]", 5).accuracy.value == 1.0


def test_an_evaluation_at_n_averages_over_subsets() -> None:
    result = evaluate_pools([POOL], [1, 2], num_orders=6000, bootstrap=NONE)
    # N = 1: two of five are right. N = 2 by min: the 10 pairs; a right sample wins in {2,*} (4 pairs), and
    # sample 3 (.1) wins none: 4 / 10.
    assert point(result, "best_of_n[min]", 1).accuracy.value == pytest.approx(0.4)
    assert point(result, "majority", 1).accuracy.value == pytest.approx(0.4)
    assert point(result, "best_of_n[min]", 2).accuracy.value == pytest.approx(0.4, abs=0.02)
    # Majority of 2: {2,3} right; pairs with one right sample tie: (2 * 3) pairs at half. (1 + 3) / 10
    assert point(result, "majority", 2).accuracy.value == pytest.approx(0.4, abs=0.02)
    assert result.pass_at_k[2].value == pytest.approx(1 - 3 / 10)


def brute_majority(pool: SamplePool, n: int) -> float:
    total = 0.0
    for subset in combinations(range(len(pool.classes)), n):
        votes: dict[int, int] = {}
        for i in subset:
            name = pool.classes[i]
            if name is not None:
                votes[name] = votes.get(name, 0) + 1
        if votes:
            top = [name for name, v in votes.items() if v == max(votes.values())]
            total += sum(bool(pool.right[pool.classes.index(name)]) for name in top) / len(top)
    return total / comb(len(pool.classes), n)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_majority_agrees_with_brute_force_over_all_subsets(n: int) -> None:
    pool = SamplePool("q", (0, 1, 1, None, 2, 0), (True, False, False, False, False, True), (5,) * 6)
    result = evaluate_pools([pool], [n], num_orders=5000, bootstrap=NONE)
    assert point(result, "majority", n).accuracy.value == pytest.approx(brute_majority(pool, n), abs=0.025)


def test_missing_answers_never_vote_and_are_never_chosen() -> None:
    pool = SamplePool(
        "p",
        (None, None, None, 0),
        (False, False, False, True),
        (1,) * 4,
        scores=((0.9,), (0.99,), (0.8,), (0.1,)),
    )
    result = evaluate_pools([pool], [4], bootstrap=NONE)
    assert all(p.accuracy.value == 1.0 for p in result.points)
    silent = SamplePool("p", (None, None), (False, False), (1, 1), scores=((0.9,), (0.8,)))
    assert all(p.accuracy.value == 0.0 for p in evaluate_pools([silent], [2], bootstrap=NONE).points)


def test_samples_of_unknown_outcome_leave_the_pool_and_are_counted() -> None:
    pool = SamplePool("p", (0, 0, 1), (None, None, True), (1,) * 3)
    result = evaluate_pools([pool], [1], bootstrap=NONE)
    assert result.num_samples_left_out == 2
    assert point(result, "majority", 1).accuracy.value == 1.0
    assert result.pass_at_k[1].value == 1.0
    short = evaluate_pools([pool, SamplePool("q", (0, 1), (True, False), (1, 1))], [2], bootstrap=NONE)
    assert (short.num_problems, short.num_problems_left_out) == (1, 1)
    with pytest.raises(EvaluationError, match="none of 1 problems has 4 samples"):
        evaluate_pools([pool], [4], bootstrap=NONE)


def test_classes_where_equivalence_and_grading_disagree_are_counted() -> None:
    pool = SamplePool("p", (0, 0, 1), (True, False, False), (1,) * 3)
    assert evaluate_pools([pool], [1], bootstrap=NONE).num_split_classes == 1


def test_a_class_whose_scores_are_all_zero_still_has_votes() -> None:
    pool = SamplePool("p", (0, 0), (True, True), (1, 1), scores=((0.0,), (0.0,)))
    assert all(p.accuracy.value == 1.0 for p in evaluate_pools([pool], [2], bootstrap=NONE).points)


def test_sums_that_differ_only_in_rounding_are_ties() -> None:
    # .1 + .2 + .3 against .3 + .3: equal in the reals, not in floats.
    pool = SamplePool(
        "p", (0, 0, 0, 1, 1), (True, True, True, False, False), (1,) * 5,
        scores=((0.1,), (0.2,), (0.3,), (0.3,), (0.3,)),
    )  # fmt: skip
    result = evaluate_pools([pool], [5], num_orders=400, bootstrap=NONE)
    assert point(result, "weighted_majority[last]", 5).accuracy.value == pytest.approx(0.5, abs=0.1)


def test_a_token_budget_is_never_exceeded_and_scoring_is_charged() -> None:
    pools = [
        SamplePool(
            f"p{k}", (0, 1, 0, 1), (True, False, True, False), (7, 11, 13, 17), scores=((0.9,), (0.1,)) * 2
        )
        for k in range(20)
    ]
    result = evaluate_pools(pools, [6, 20, 40, 96], cut_by="tokens", bootstrap=NONE)
    for p in result.points:
        assert p.generated_tokens + p.scored_tokens <= p.cut
    # Nothing fits into 6 tokens: no answer, which is wrong.
    assert point(result, "majority", 6).accuracy.value == 0.0
    # 48 tokens generate all four samples; with scoring that takes 96.
    assert point(result, "majority", 96).num_samples == 4
    assert point(result, "best_of_n[min]", 96).num_samples == 4
    assert point(result, "best_of_n[min]", 40).num_samples < 3
    assert point(result, "best_of_n[min]", 96).scored_tokens == 48
    assert point(result, "majority", 96).scored_tokens == 0


def test_differences_against_majority_are_paired_by_problem() -> None:
    rng = np.random.default_rng(0)
    pools = []
    for k in range(150):
        right = rng.random(8) < rng.random()
        scores = tuple(
            (float(np.clip(0.5 + 0.6 * (r - 0.5) + 0.15 * rng.standard_normal(), 0, 1)),) for r in right
        )
        classes = tuple(0 if r else int(rng.integers(1, 4)) for r in right)
        pools.append(SamplePool(f"p{k}", classes, tuple(bool(r) for r in right), (10,) * 8, scores))
    result = evaluate_pools(pools, [8], num_orders=2, bootstrap=Bootstrap(200))
    best, majority = point(result, "weighted_majority[last]", 8), point(result, "majority", 8)
    gap = best.over_majority
    assert gap.value == pytest.approx(best.accuracy.value - majority.accuracy.value)
    itself = majority.over_majority
    assert (itself.value, itself.low, itself.high) == (0, 0, 0)
    assert gap.low is not None
    assert gap.low > 0
    # Pairing: narrower than the difference of two independent estimates would be.
    widths = [m.high - m.low for m in (gap, best.accuracy, majority.accuracy)]
    assert widths[0] < np.hypot(widths[1], widths[2])
    again = evaluate_pools(pools[::-1], [8], num_orders=2, bootstrap=Bootstrap(200))
    assert point(again, "majority", 8).accuracy.value == pytest.approx(majority.accuracy.value)


def test_a_pool_must_be_whole() -> None:
    with pytest.raises(StepCountError, match="problem p"):
        SamplePool("p", (0, 1), (True,), (1, 1))
    with pytest.raises(StepCountError, match="no step scores"):
        SamplePool("p", (0, 1), (True, False), (1, 1), scores=((0.5,), ()))
    with pytest.raises(ScoreRangeError, match="p, sample 1, step 0"):
        SamplePool("p", (0, 1), (True, False), (1, 1), scores=((0.5,), (float("nan"),)))
    with pytest.raises(DoubledItemsError):
        evaluate_pools([POOL, POOL], [1], bootstrap=NONE)
    with pytest.raises(StepCountError, match="problem q"):
        evaluate_pools([POOL, SamplePool("q", (0,), (True,), (1,))], [1], bootstrap=NONE)


def test_answers_are_grouped_by_key_or_by_test() -> None:
    answers = ["1/2", "0.5", None, ".50", "2"]
    assert classes_by_key(answers, lambda a: a) == (0, 1, None, 2, 3)

    def value(text: str) -> float:
        top, _, bottom = text.partition("/")
        return float(top) / float(bottom or 1)

    assert classes_by_test(answers, lambda a, b: value(a) == value(b)) == (0, 0, None, 0, 1)


def test_stored_samples_of_a_public_example_give_its_counts(data_dir: Path) -> None:
    # Counted apart from the file: 728 of 800 samples right, 96 problems with a right one, 94 by highest reward.
    pools = []
    with (data_dir / "solutions" / "math100_qwen25math_8samples_rm.jsonl").open() as file:
        for row in map(json.loads, file):
            rewards = tuple((1 / (1 + math.exp(-score[0])),) for score in row["pred_score"])
            classes = classes_by_key(row["pred"], str.strip)
            pools.append(SamplePool(str(row["idx"]), classes, tuple(row["score"]), (1,) * 8, rewards))
    result = evaluate_pools(
        pools, [1, 8], aggregations={"reward": lambda s: s[-1]}, num_orders=8, bootstrap=NONE
    )
    assert result.pass_at_k[1].value == pytest.approx(0.91)
    assert result.pass_at_k[8].value == pytest.approx(0.96)
    assert point(result, "best_of_n[reward]", 8).accuracy.value == pytest.approx(0.94)
    # 93 with ties broken by first appearance; one or two problems are tied
    assert point(result, "majority", 8).accuracy.value == pytest.approx(0.925, abs=0.011)
    assert point(result, "majority", 1).accuracy.value == pytest.approx(0.91)


# --- aggregation


def test_aggregations_by_hand() -> None:
    scores = (0.5, 0.8, 0.9)
    assert {name: rule(scores) for name, rule in AGGREGATIONS.items()} == pytest.approx(
        {"min": 0.5, "product": 0.36, "last": 0.9, "mean": 2.2 / 3}
    )
    assert product((0.5, 0.0)) == 0.0


def test_the_product_of_a_long_solution_still_orders() -> None:
    assert product((0.9,) * 3000) > product((0.9,) * 3001) > 0


def test_the_learned_aggregation_finds_the_rule_that_made_the_outcomes() -> None:
    rng = np.random.default_rng(1)
    scores = [tuple(rng.random(rng.integers(2, 7))) for _ in range(3000)]
    right = [bool(rng.random() < min(row)) for row in scores]
    ids = [f"p{k}" for k in range(3000)]
    learned = learn_aggregation(ids[:2000], scores[:2000], right[:2000])

    def auc(values: list[float]) -> float:
        order = np.argsort(np.argsort(values))
        mark = np.array(right[2000:])
        return float((order[mark].mean() - (mark.sum() - 1) / 2) / (~mark).sum())

    by_min = auc([min(row) for row in scores[2000:]])
    by_last = auc([row[-1] for row in scores[2000:]])
    assert auc([learned(row) for row in scores[2000:]]) > by_min - 0.01 > by_last
    pools = [SamplePool("p7", (0, 1), (True, False), (1, 1), scores=((0.5,), (0.4,)))]
    with pytest.raises(TunedOnTestError, match="p7"):
        evaluate_pools(pools, [1], aggregations={"learned": learned})
    pools = [SamplePool("new", (0, 1), (True, False), (1, 1), scores=((0.95,), (0.05,)))]
    result = evaluate_pools(pools, [2], aggregations={"learned": learned}, bootstrap=NONE)
    assert point(result, "best_of_n[learned]", 2).accuracy.value == 1.0


def test_one_kind_of_outcome_teaches_no_aggregation() -> None:
    with pytest.raises(EmptySideError):
        learn_aggregation(["a", "b"], [(0.5,), (0.6,)], [True, True])


def test_extreme_scores_have_finite_features() -> None:
    assert np.isfinite(features((0.0, 1.0, 1.0))).all()
