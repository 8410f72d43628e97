"""Heads: shapes, readings and first values."""

from math import log

import pytest
import torch

from stepward.prm.errors import ModelError
from stepward.prm.models.heads import BetaHead, EnsembleHead, HeadSpec, as_head, build_head, head_spec

KINDS = ["scalar", "two_class", "mlp", "value3", "beta", "ensemble"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_head_gives_one_probability_a_row_that_agrees_with_its_logit(kind: str):
    torch.manual_seed(0)
    spec = head_spec(kind)
    head = build_head(8, spec)
    raw = head(torch.randn(5, 8))
    assert raw.shape == (5, spec.outputs)
    p = as_head(head).probability(raw)
    assert p.shape == (5,)
    assert torch.allclose(torch.sigmoid(as_head(head).logit(raw)), p, atol=1e-5)


def test_a_spec_survives_json():
    spec = head_spec("vocabulary", token_ids=(3, 9))
    assert HeadSpec.from_dict(spec.to_dict() | {"token_ids": [3, 9]}) == spec


def test_widths_are_one_for_scalar_and_two_for_two_classes():
    assert [head_spec(k).outputs for k in ("scalar", "two_class", "value3", "ensemble")] == [1, 2, 3, 32]


def test_a_beta_head_starts_at_its_concentration():
    head = build_head(4, head_spec("beta", kappa_init=8.0))
    raw = head(torch.randn(3, 4))
    # softplus of its own inverse, plus the floor of .001.
    assert BetaHead.concentration(raw).tolist() == pytest.approx([8.001] * 3, abs=1e-4)


def test_the_deviation_of_a_beta_is_that_of_the_distribution():
    head = build_head(4, head_spec("beta"))
    assert isinstance(head, BetaHead)
    # mu = 1/2, kappa = softplus(x) + .001 = 3: variance 1/4 / 4, deviation 1/4.
    x = log(torch.expm1(torch.tensor(2.999)).item())
    assert head.deviation(torch.tensor([[0.0, x]])).item() == pytest.approx(0.25, abs=1e-4)


def test_a_beta_scores_by_the_chance_that_any_rollout_reaches_the_answer():
    # mu = 1/2, kappa = 2: Beta(1, 1) is uniform, and P(none of 3) = 1 / 4.
    x = log(torch.expm1(torch.tensor(1.999)).item())
    raw = torch.tensor([[0.0, x]])
    head = build_head(4, head_spec("beta", any_of=3))
    assert isinstance(head, BetaHead)
    assert head.probability(raw).item() == pytest.approx(0.75, abs=1e-4)
    assert head.logit(raw).item() == pytest.approx(log(3), abs=1e-3)
    plain = build_head(4, head_spec("beta", any_of=0))
    assert as_head(plain).probability(raw).item() == pytest.approx(0.5)
    assert (head_spec("beta").any_of, HeadSpec("beta").any_of) == (8, 0)
    # The surest of readings stay finite.
    sure = torch.tensor([[40.0, 20.0], [-40.0, 20.0]])
    assert bool(head.logit(sure).isfinite().all())


def test_the_deviation_of_an_ensemble_is_that_of_its_members():
    head = build_head(4, head_spec("ensemble", members=2))
    assert isinstance(head, EnsembleHead)
    # Members say 1/2 and 3/4: mean 5/8, deviation 1/8.
    raw = torch.tensor([[0.0, log(3)]])
    assert head.probability(raw).item() == pytest.approx(0.625)
    assert head.deviation(raw).item() == pytest.approx(0.125)


def test_three_classes_read_right_against_the_rest():
    head = build_head(4, head_spec("value3"))
    # Logits 0, ln 2, 0: P(right) = 2 / 4.
    assert as_head(head).probability(torch.tensor([[0.0, log(2), 0.0]])).item() == pytest.approx(0.5)


def test_an_unknown_head_is_named():
    with pytest.raises(ModelError, match="two_class"):
        head_spec("twoclass")
    with pytest.raises(ModelError, match="minus and plus"):
        build_head(4, head_spec("vocabulary"))
