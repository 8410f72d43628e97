"""The benchmark's compiled kernel is the package's posterior, and its figures cannot slip unseen."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from stepward.labeling.changepoint.grid import make_grid
from stepward.labeling.changepoint.problem import posteriors
from stepward.labeling.evidence import SolutionEvidence
from stepward.prm.types import Outcome

pytestmark = pytest.mark.slow
pytest.importorskip("numba", reason="the benchmark's kernel is compiled with numba")


@pytest.fixture(scope="module", autouse=True)
def _checkout_on_the_path():
    folder = str(Path(__file__).resolve().parents[2])
    sys.path.insert(0, folder)
    yield
    sys.path.remove(folder)


def test_the_kernel_equals_the_package_single_and_pooled():
    from benchmarks.active import DECODE_ONLY, run
    from benchmarks.simulator import MAX_STEPS, simulate

    grid = make_grid()
    sample = simulate("base", 64, 5, 8)
    rng = np.random.default_rng(0)
    inside = (np.arange(MAX_STEPS + 1) >= 1) & (np.arange(MAX_STEPS + 1) < sample.num_steps[:, None])
    trials = rng.integers(0, 4, inside.shape) * inside
    right = rng.binomial(trials, sample.chance)
    evidence = rng.uniform(0.3, 2.0, (64, MAX_STEPS, 3))
    for pooled in (True, False):
        curve = run(sample, DECODE_ONLY, grid, 1, pooled=pooled, given=(right, trials))
        for first in range(0, 64, 8):
            solutions = [
                SolutionEvidence(
                    int(steps), (10,) * int(steps), Outcome.RIGHT if sample.right[row] else Outcome.WRONG,
                    tuple(
                        (Outcome.RIGHT,) * int(right[row, t])
                        + (Outcome.WRONG,) * int(trials[row, t] - right[row, t])
                        for t in range(steps + 1)
                    ),
                )
                for row, steps in enumerate(sample.num_steps[first : first + 8], start=first)
            ]  # fmt: skip
            for row, got in enumerate(posteriors(solutions, grid, pool=pooled), start=first):
                width = sample.num_steps[row] + 1
                np.testing.assert_allclose(curve.p_right[row, :width], got.p_right, atol=1e-9)
                np.testing.assert_allclose(curve.theta[row], got.theta, atol=1e-6)  # stored in float32
    with_evidence = run(sample, DECODE_ONLY, grid, 1, evidence=evidence)
    assert np.abs(with_evidence.p_right - run(sample, DECODE_ONLY, grid, 1).p_right).max() > 0.01


@pytest.mark.parametrize("pool", [True, False])
@pytest.mark.parametrize("on_policy", [True, False])
def test_compiled_and_plain_allocation_choose_the_same_rollouts(pool, on_policy):
    from stepward.labeling.allocation.information_gain import InformationGain
    from stepward.prm.types import Verdict, VerdictKind

    rng = np.random.default_rng(3)
    flag = Verdict(VerdictKind.REFUTED, "arithmetic", "1")
    solutions = []
    for steps in (1, 2, 9, 9, 23):
        draws = [
            tuple(Outcome.RIGHT if y else Outcome.WRONG for y in rng.integers(0, 2, rng.integers(0, 4)))
            for _ in range(steps)
        ]
        verdicts = tuple((flag,) if rng.random() < 0.2 else () for _ in range(steps)) if steps == 9 else ()
        outcome = Outcome.RIGHT if steps % 2 else Outcome.WRONG
        solutions.append(
            SolutionEvidence(steps, (30,) * steps, outcome, (*draws, ()), verdicts, on_policy=on_policy)
        )
    plain, compiled = (InformationGain(pool=pool, compiled=c) for c in (False, True))
    grid = make_grid(on_policy=on_policy)
    for a, b in zip(plain._gains(solutions, grid), compiled._gains(solutions, grid), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    assert plain.next_draws(solutions) == compiled.next_draws(solutions)


def test_compiled_gains_stay_exact_at_hundreds_of_rollouts_and_when_the_curves_are_dropped(monkeypatch):
    from stepward.labeling.allocation.information_gain import InformationGain
    from stepward.labeling.changepoint import fast

    monkeypatch.setattr(fast, "_MOST_ROWS", 40)
    fast._shapes.cache_clear()
    grid, rng = make_grid(), np.random.default_rng(4)
    plain, compiled = InformationGain(compiled=False), InformationGain(compiled=True)
    for steps in (30, 12, 30, 200):
        draws = tuple(
            tuple(Outcome.RIGHT if y else Outcome.WRONG for y in rng.integers(0, 2, 150 if t % 5 == 1 else 0))
            for t in range(steps + 1)
        )
        solutions = [SolutionEvidence(steps, (30,) * steps, Outcome.WRONG, draws)] * 2
        for a, b in zip(plain._gains(solutions, grid), compiled._gains(solutions, grid), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    fast._shapes.cache_clear()


def test_a_thousand_solutions_on_one_core_stay_ahead_of_the_peers():
    """1,000 solutions have wide intervals: the bounds are half of what 16,000 show."""
    from benchmarks.active import DECODE_ONLY, decode, run
    from benchmarks.intervals import Resample, f1_at, tokens_at
    from benchmarks.peers import best_omegaprm, fixed_samples, math_shepherd
    from benchmarks.simulator import simulate

    started = time.process_time()
    grid, sample = make_grid(), simulate("base", 1000, 77)
    boot = Resample.of(sample, 1, replicates=1)
    drawn = fixed_samples(sample, 8, 77)
    budget = math_shepherd(sample, drawn, 0.0).tokens.mean()
    target = boot.f1(decode(sample, drawn, grid))[0, 0]
    prices = np.concatenate([DECODE_ONLY, np.geomspace(8e-4, 1.6e-5, 12)])
    curve = run(sample, prices, grid, 77)
    scores, tokens = boot.f1(curve.predicted)[0], boot.mean(curve.tokens)[0]
    _, omega = best_omegaprm(sample, 77)
    assert f1_at(scores, tokens, 0.10 * budget) > 0.68
    # noise of the target alone is +-.03: ask for the tokens at a point below it
    assert budget / tokens_at(scores, tokens, target - 0.03) > 6
    assert omega.tokens.mean() / tokens_at(scores, tokens, boot.f1(omega.predicted)[0, 0]) > 1.5
    assert time.process_time() - started < 60
