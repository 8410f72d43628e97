"""Precision and recall of sources: measured by hand, learned without truth, and hints through their model."""

from dataclasses import replace

import numpy as np
import pytest

from stepward.labeling.changepoint.hints import HintModel
from stepward.labeling.changepoint.step_evidence import hint_likelihood
from stepward.labeling.source_quality import fitted_hint, learned, measured, read_through
from stepward.prm.errors import InputError
from stepward.prm.formats.fields import NOBODY
from stepward.prm.types import (
    Allocation,
    Estimate,
    LabeledSolution,
    LabelerInfo,
    Problem,
    Reason,
    Solution,
    Step,
    StepLabel,
    Verdict,
    VerdictKind,
)

S, R, U = VerdictKind.SUPPORTED, VerdictKind.REFUTED, VerdictKind.UNKNOWN


def said(kind, name="tool"):
    return () if kind is None else (Verdict(kind, name, "1", Reason.PARSE if kind is U else Reason.NONE),)


def test_measured_quality_counts_flags_up_to_the_first_error_and_leans_on_the_default():
    verdicts = [
        [said(S), said(R), said(R)],  # error at 1: flagged; what comes after does not count
        [said(S), said(S)],  # error at 1: missed
        [said(R), said(U)],  # no error: a false flag; unknown is silence
        [said(None), said(R)],  # error at 0: the tool is silent on it; the flag after it does not count
    ]
    found = measured(verdicts, [1, 1, None, 0])
    # two flags, one hit: (1 + 4 * .9) / (2 + 4) = .767; two errors spoken on, one hit: (1 + 4 * .6) / (2 + 4) = .567
    assert found.precision == {"tool": 0.767}
    assert found.recall == {"tool": 0.567}
    assert found.steps == {"tool": 5}


def row(number, hard_error, verdicts, hints=None, p=None):
    steps = tuple(Step(f"s{t}") for t in range(len(verdicts)))
    p = p or [float(t == hard_error) for t in range(len(steps))]
    labels = tuple(
        StepLabel(None, p[t], "", v, None, None if hints is None else hints[t])
        for t, v in enumerate(verdicts)
    )
    problem = Problem(f"p{number}", "?")
    return LabeledSolution(
        problem, Solution(f"p{number}-0", problem.id, steps), (Estimate(),) * (len(steps) + 1), labels, hard_error,
        NOBODY, NOBODY, "", 0, Allocation.FIXED_K, 0, 0, LabelerInfo("", "", ""),
    )  # fmt: skip


def simulated(num, rng, sources):
    """Solutions of five steps; each source (recall, false alarms) and the returns (.9, .01) see the truth dimly."""
    rows = []
    for number in range(num):
        truth = int(rng.integers(0, 10))
        flags = {
            name: [bool(rng.random() < (hit if t == truth else alarm)) for t in range(5)]
            for name, (hit, alarm) in sources.items()
        }
        seen = [bool(rng.random() < (0.9 if t == truth else 0.01)) for t in range(5)]
        error = seen.index(True) if any(seen) else None
        verdicts = [
            tuple(v for name in flags for v in said(R if flags[name][t] else S, name)) for t in range(5)
        ]
        rows.append(row(number, error, verdicts))
    return rows


def test_quality_is_learned_from_three_sources_without_any_truth():
    rng = np.random.default_rng(0)
    found = learned(simulated(2000, rng, {"good": (0.8, 0.005), "poor": (0.5, 0.08)}))
    assert found.recall["good"] == pytest.approx(0.8, abs=0.06)
    assert found.recall["poor"] == pytest.approx(0.5, abs=0.06)
    # one step in ten is a first error: .1*.8/(.1*.8 + .9*.005) = .947; .1*.5/(.1*.5 + .9*.08) = .41
    assert found.precision["good"] == pytest.approx(0.947, abs=0.06)
    assert found.precision["poor"] == pytest.approx(0.41, abs=0.06)


def test_two_sources_cannot_tell_which_of_them_errs():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="needs three sources"):
        learned(simulated(50, rng, {"good": (0.8, 0.005)}))


def test_a_hint_that_separates_is_fitted_and_one_that_does_not_is_none():
    rng = np.random.default_rng(1)

    def rows(wrong):
        found = []
        for number in range(200):
            error = int(rng.integers(0, 6))
            logits = [rng.normal(wrong if t == error else 2.0, 1.0) for t in range(3)]
            hints = [round(float(1 / (1 + np.exp(-x))), 4) for x in logits]
            found.append(row(number, error if error < 3 else None, [()] * 3, hints))
        return found

    model = fitted_hint(rows(-1.0))
    assert model.mean_right == pytest.approx(2.0, abs=0.25)
    assert model.mean_wrong == pytest.approx(-1.0, abs=0.35)
    assert fitted_hint(rows(3.0)) is None, "backwards is no hint"
    assert (
        fitted_hint([replace(r, labels=tuple(replace(x, hint=None) for x in r.labels)) for r in rows(0)])
        is None
    )


def test_reading_through_a_model_gives_the_posterior_its_likelihood_ratio():
    model = HintModel(2.0, 0.0, 1.0)
    # logit of .5 is 0: ((0-2)^2 - 0)/2 = 2 nats, e^2 = 7.389
    (p,) = read_through(model, [0.5])
    assert hint_likelihood(p) == pytest.approx(np.exp(2.0))
    (q,) = read_through(model, [0.0])
    assert hint_likelihood(q) == pytest.approx(20.0), "clipped, and a score of 0 is finite"
