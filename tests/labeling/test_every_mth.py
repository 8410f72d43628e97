"""The cost cap: rollouts and labels at every m-th prefix, and only what is known of the steps between."""

import importlib.util
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stepward.labeling.allocation.fixed_k import FixedK
from stepward.labeling.every_mth import EveryMth, EveryMthEstimator, grouped, kept_prefixes, spread
from stepward.labeling.evidence import SolutionEvidence, SolutionLabels
from stepward.prm.types import Counts, Estimate, Outcome, StepLabel, Verdict, VerdictKind


def _harness():
    spec = importlib.util.spec_from_file_location("annotating", Path(__file__).with_name("annotating.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


h = _harness()


def test_the_kept_prefixes_are_every_mth_and_the_ends():
    assert kept_prefixes(7, 3) == (0, 3, 6, 7)
    assert kept_prefixes(6, 3) == (0, 3, 6)
    assert kept_prefixes(2, 5) == (0, 2)
    assert kept_prefixes(3, 1) == (0, 1, 2, 3)


def test_a_group_has_its_steps_tokens_verdicts_and_lowest_score():
    verdict = Verdict(VerdictKind.REFUTED, "tool", "1")
    evidence = SolutionEvidence(
        num_steps=3, step_tokens=(5, 7, 11), outcome=Outcome.WRONG,
        draws=((Outcome.RIGHT,), (), (Outcome.WRONG,), ()), verdicts=((), (verdict,), ()), prm_scores=(0.9, 0.2, 0.4),
    )  # fmt: skip
    found = grouped(evidence, 2)
    assert (found.num_steps, found.step_tokens, found.prm_scores) == (2, (12, 11), (0.2, 0.4))
    assert found.draws == ((Outcome.RIGHT,), (Outcome.WRONG,), ())
    assert found.verdicts == ((verdict,), ())


def estimates(n: int) -> tuple[Estimate, ...]:
    return tuple(Estimate(Counts(right=i), i / 10) for i in range(n))


def test_a_right_group_is_right_throughout_and_a_wrong_one_only_at_its_end():
    # groups: steps 0-2 right, 3-5 wrong, 6 (alone) wrong after it
    labels = (StepLabel(1, 0.0, "returns"), StepLabel(0, 0.9, "returns"), StepLabel(0, 0.1, "returns"))
    found = spread(SolutionLabels(estimates(4), labels, 1), (0, 3, 6, 7), [Counts()] * 8)
    assert [x.label for x in found.labels] == [1, 1, 1, None, None, 0, 0]
    # the group's probability is shared by its three steps
    assert [x.p_first_error for x in found.labels] == [0, 0, 0, 0.3, 0.3, 0.3, 0.1]
    assert found.first_error is None, "which of three steps was first is not known"
    assert [e.value for e in found.estimates] == [0.0, None, None, 0.1, None, None, 0.2, 0.3]


def test_a_first_error_in_a_group_of_one_is_known():
    labels = (StepLabel(1, decided_by="returns"), StepLabel(0, decided_by="returns"))
    found = spread(SolutionLabels(estimates(3), labels, 1), (0, 3, 4), [Counts()] * 5)
    assert [x.label for x in found.labels] == [1, 1, 1, 0]
    assert found.first_error == 3


def test_steps_after_a_wrong_group_are_as_wrong_as_the_estimator_says():
    labels = (StepLabel(0), StepLabel(0), StepLabel(1))
    found = spread(SolutionLabels(estimates(4), labels, 0), (0, 2, 4, 6), [Counts()] * 7)
    assert [x.label for x in found.labels] == [None, 0, 0, 0, 1, 1]


@given(st.integers(1, 40), st.integers(1, 9))
def test_every_step_gets_one_label_and_every_prefix_one_estimate(num_steps, every):
    kept = kept_prefixes(num_steps, every)
    assert kept[0] == 0
    assert kept[-1] == num_steps
    assert list(kept) == sorted(set(kept))
    labels = tuple(StepLabel(1) for _ in kept[1:])
    found = spread(SolutionLabels(estimates(len(kept)), labels, None), kept, [Counts()] * (num_steps + 1))
    assert (len(found.labels), len(found.estimates)) == (num_steps, num_steps + 1)


def test_a_labelling_draws_only_where_it_labels():
    whole = "\n".join([f"{i} + 1 = {i + 1}" for i in range(6)] + ["The answer is 6."])
    policy = h.script(
        [whole, whole], lambda so_far: f"{len(so_far)}\nThe answer is {7 if len(so_far) > 25 else 6}."
    )
    plan = h.labelling(policy, allocation=EveryMth(FixedK(4), 3), num_solutions=1)
    plan = replace(plan, estimator=EveryMthEstimator(plan.estimator, 3))
    row = h.run(policy, plan).solutions[0]
    assert len(row.labels) == 7
    # prefixes 3 and 6 of 7 steps have four rollouts each; the whole solution has its own outcome
    assert [p.counts.total for p in row.prefixes] == [1, 0, 0, 4, 0, 0, 4, 1]
    # "0 + 1 = 1\n" is ten characters: after three lines 30, so every rollout from prefix 3 on is wrong
    assert [x.label for x in row.labels] == [None, None, 0, 0, 0, 0, 1]
    assert plan.estimator.version.endswith("/3")
