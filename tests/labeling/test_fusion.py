"""What tools and judges may change in a label, and that unknown changes nothing."""

import numpy as np
import pytest

from stepward.labeling import fusion, grounded
from stepward.labeling.dawid_skene import dawid_skene
from stepward.labeling.evidence import SolutionEvidence, SolutionLabels
from stepward.prm.errors import InputError
from stepward.prm.types import Estimate, Outcome, Reason, StepLabel, Verdict, VerdictKind

S, R, U = VerdictKind.SUPPORTED, VerdictKind.REFUTED, VerdictKind.UNKNOWN


def labels(*hard, first=None):
    steps = tuple(StepLabel(h, decided_by="returns") for h in hard)
    return SolutionLabels(tuple(Estimate() for _ in range(len(hard) + 1)), steps, first)


def verdicts(*kinds, verifier="arithmetic"):
    reason = {U: Reason.PARSE}
    return [() if k is None else (Verdict(k, verifier, "1", reason.get(k, Reason.NONE)),) for k in kinds]


def hard(result):
    return [x.label for x in result.labels]


def test_veto_moves_the_first_error_to_an_earlier_refuted_step_and_says_who():
    result = fusion.veto(labels(1, 1, 0, first=2), verdicts(S, R, None))
    assert (hard(result), result.first_error) == ([1, 0, 0], 1)
    assert [x.decided_by for x in result.labels] == ["returns", "arithmetic", "returns"]
    assert result.labels[1].verdicts[0].kind is R


def test_an_unknown_or_a_supporting_verdict_changes_no_label():
    for kind in (U, S):
        result = fusion.veto(labels(1, 0, first=1), verdicts(kind, kind))
        assert (hard(result), result.first_error) == ([1, 0], 1)


def test_intersect_makes_a_contradicted_step_unknown_and_gives_up_the_first_error():
    result = fusion.intersect(labels(1, 1, 0, first=2), verdicts(None, R, None))
    assert (hard(result), result.first_error, result.decided) == ([1, None, 0], None, False)
    agreed = fusion.intersect(labels(1, 1, 0, first=2), verdicts(None, None, R))
    assert (hard(agreed), agreed.first_error, agreed.decided) == ([1, 1, 0], 2, True)


def test_consensus_keeps_a_solution_only_where_both_name_the_same_first_error():
    agree = fusion.consensus(labels(1, 0, 0, first=1), verdicts(S, R, None, verifier="judge"))
    assert (hard(agree), agree.first_error) == ([1, 0, None], 1)
    assert agree.labels[1].decided_by == "consensus"
    for other in (verdicts(R, None, None, verifier="judge"), verdicts(S, S, S, verifier="judge")):
        result = fusion.consensus(labels(1, 0, 0, first=1), other)
        assert (hard(result), result.first_error, result.decided) == ([None] * 3, None, False)


def test_a_judge_that_could_not_tell_is_no_agreement_even_on_a_right_solution():
    result = fusion.consensus(labels(1, 1), verdicts(S, U, verifier="judge"))
    assert result.decided is False
    assert fusion.consensus(labels(1, 1), verdicts(S, S, verifier="judge")).decided is True


def test_grounded_reward_is_the_codes_formula():
    # own +1 and last -1 are dropped; N = 2: (1*1 + -1*.5)/2 + 1/2 = .75
    assert grounded.code_reward([1, 1, -1, -1], 1) == pytest.approx(0.75)
    assert grounded.code_reward([1, -1], -1) == -1.0


def test_grounded_reward_in_the_papers_form_means_the_decayed_later_verdicts_and_adds_the_end():
    # later verdicts 1, -1, -1: (1 - .9 - .81)/3 + 1 = .763333
    assert grounded.paper_reward([1, 1, -1, -1], 1) == pytest.approx(0.7633333)
    assert grounded.paper_reward([1], -1) == -1.0


def evidence(found, outcome, draws, scores=()):
    n = len(found)
    return SolutionEvidence(n, (5,) * n, outcome, draws, tuple(found), scores)


def test_grounded_labels_are_the_signs_of_decayed_sums_and_end_at_the_first_error():
    # wrong solution of three steps, verdicts ok, refuted, none; one right rollout after step 0, faults elsewhere.
    # node 2: own path (0,), F = -1: -1. node 1: own (-1, 0): no inner, -1; + .9 * -1 = -1.9.
    # node 0: own (1, -1, 0): inner (-1,), N = 1: -1 - 1 = -2; rollout +1; + .9 * -1.9 = -2.71.
    draws = ((), (Outcome.RIGHT,), (Outcome.ERROR,), ())
    known = evidence(verdicts(S, R, None), Outcome.WRONG, draws)
    assert grounded.backed_up(known, grounded.code_reward) == pytest.approx([-2.71, -1.9, -1.0])
    result = fusion.RULES["grounded_code"].fuse(labels(1, 1, 0, first=2), known)
    assert (hard(result), result.first_error) == ([0, None, None], 0)
    assert [x.decided_by for x in result.labels] == ["grounded", "", ""]
    # four right rollouts there lift the first step: -2.71 + 3 = .29; the error moves to the next
    more = evidence(verdicts(S, R, None), Outcome.WRONG, ((), (Outcome.RIGHT,) * 4, (), ()))
    assert hard(fusion.RULES["grounded_code"].fuse(labels(1, 1, 0, first=2), more)) == [1, 0, None]


def test_grounded_says_nothing_where_no_path_had_an_end():
    known = evidence(verdicts(S, R), Outcome.UNDECIDED, ((), (Outcome.TIMEOUT,), ()))
    result = fusion.RULES["grounded_paper"].fuse(labels(1, 0, first=1), known)
    assert (hard(result), result.first_error, result.decided) == ([None, None], None, False)


def test_posterior_labels_name_every_source_that_spoke_on_their_step():
    steps = tuple(StepLabel(h, decided_by="posterior") for h in (1, 0))
    found = SolutionLabels((Estimate(),) * 3, steps, 1)
    tools = evidence(verdicts(U, R), Outcome.WRONG, ((), (), ()))
    result = fusion.RULES["posterior"].fuse(found, tools)
    assert [x.decided_by for x in result.labels] == ["posterior", "posterior+arithmetic"]
    assert hard(result) == [1, 0]
    hints = evidence(verdicts(None, None), Outcome.WRONG, ((), (), ()), (0.9, 0.1))
    result = fusion.RULES["posterior"].fuse(found, hints)
    assert [x.decided_by for x in result.labels] == ["posterior+hint"] * 2


def test_dawid_skene_finds_the_good_source_without_any_truth():
    rng = np.random.default_rng(0)
    truth = rng.random(20_000) < 0.3
    quality = [(0.9, 0.02), (0.7, 0.1), (0.6, 0.2), (0.8, 0.05)]  # (recall, false alarms)
    votes = [
        [None if rng.random() < 0.3 else int(rng.random() < (hit if t else alarm)) for hit, alarm in quality]
        for t in truth
    ]
    found = dawid_skene(votes)
    np.testing.assert_allclose(found.flags_wrong, [0.9, 0.7, 0.6, 0.8], atol=0.03)
    np.testing.assert_allclose(found.flags_right, [0.02, 0.1, 0.2, 0.05], atol=0.02)
    assert abs(found.base_rate - 0.3) < 0.02
    # precision of the first: .3*.9 / (.3*.9 + .7*.02) = .951
    assert abs(found.precision[0] - 0.951) < 0.03


def test_dawid_skene_without_votes_is_refused():
    with pytest.raises(InputError, match="row a step"):
        dawid_skene([])
