"""One token a row, the same for any batch."""

import math

import pytest
import torch

from stepward.labeling.policies.sampling import Warp, draw, gumbel, logprobs_of, rounded
from stepward.prm.types import Sampler

CPU = torch.device("cpu")


def column(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_noise_is_standard_gumbel() -> None:
    noise = gumbel(torch.arange(200), torch.zeros(200, dtype=torch.int64), 500).flatten()
    # Mean: Euler's constant; variance: pi^2 / 6; P(g < 0) = exp(-1).
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, rel=0.03)
    assert (noise < 0).double().mean().item() == pytest.approx(math.exp(-1), abs=0.01)


def test_noise_depends_on_seed_and_position_alone() -> None:
    alone = gumbel(column(7), column(3), 50)
    among = gumbel(column(1, 7, 2), column(0, 3, 9), 50)
    assert torch.equal(alone[0], among[1])
    # A wider vocabulary (a padded embedding) changes no noise of the ids below.
    assert torch.equal(gumbel(column(7), column(3), 80)[:, :50], alone)
    assert not torch.equal(gumbel(column(7), column(4), 50), alone)
    assert not torch.equal(gumbel(column(8), column(3), 50), alone)


def test_neighbouring_seeds_and_positions_are_not_correlated() -> None:
    seeds, vocab = torch.arange(64), 400
    a = gumbel(seeds, torch.zeros(64, dtype=torch.int64), vocab)
    b = gumbel(seeds + 1, torch.zeros(64, dtype=torch.int64), vocab)
    c = gumbel(seeds, torch.ones(64, dtype=torch.int64), vocab)
    shifted = a[:, 1:], a[:, :-1]
    for x, y in ((a, b), (a, c), shifted):
        r = torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1].item()
        # Standard error 1/sqrt(25600) = 0.006.
        assert abs(r) < 0.03


def by_hand(seed: int, position: int, token_id: int) -> float:
    """The definition in Python's unbounded integers."""

    def mix(z: int) -> int:
        z ^= z >> 30
        z = z * 0xBF58476D1CE4E5B9 % 2**64
        z ^= z >> 27
        z = z * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    key = mix((mix(seed) + position * golden) % 2**64)
    bits = mix((key + (token_id + 1) * golden) % 2**64)
    return -math.log(-math.log(((bits >> 12) + 0.5) / 2**52))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 0), (12345678901234567, 31), (2**63 - 1, 5)])
def test_the_noise_is_the_same_on_every_machine(seed: int, position: int) -> None:
    noise = gumbel(column(seed), column(position), 4)[0].tolist()
    assert noise == pytest.approx([by_hand(seed, position, i) for i in range(4)], abs=1e-12)


def test_the_noise_never_changes_between_versions() -> None:
    # Another value here would change every row of every run.
    assert gumbel(column(2**63 - 1), column(5), 2)[0].tolist() == pytest.approx(
        [
            -0.296140919098,
            -1.321621,
        ],
        abs=1e-6,
    )


def test_draws_follow_the_warped_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]], dtype=torch.float64)
    n = 20_000
    sampler = Sampler(temperature=0.5)
    tokens = draw(
        logits.expand(n, 4), Warp([sampler] * n, CPU), torch.arange(n), torch.zeros(n, dtype=torch.int64)
    )
    got = torch.bincount(tokens, minlength=4).double() / n
    want = (logits[0] / 0.5).softmax(-1)
    # Three standard errors of a share of one half are 0.011.
    assert torch.allclose(got, want, atol=0.011)


@pytest.mark.parametrize(
    ("sampler", "kept"),
    [
        # Probabilities .5 .25 .15 .1 at ids 2 0 3 1.
        (Sampler(top_k=2), {2, 0}),
        (Sampler(top_p=0.5), {2}),
        (Sampler(top_p=0.51), {2, 0}),
        (Sampler(top_p=0.8), {2, 0, 3}),
        (Sampler(min_p=0.29), {2, 0, 3}),
        (Sampler(min_p=0.31), {2, 0}),
        (Sampler(top_k=3, top_p=0.6), {2, 0}),
        (Sampler(), {0, 1, 2, 3}),
    ],
)
def test_filters_keep_what_they_say(sampler: Sampler, kept: set[int]) -> None:
    logits = torch.tensor([[0.25, 0.1, 0.5, 0.15]], dtype=torch.float64).log()
    warped = Warp([sampler], CPU)(logits)
    assert {i for i in range(4) if warped[0, i] > -math.inf} == kept


def test_rows_with_different_samplers_do_not_mix() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 30, dtype=torch.float64)
    samplers = [Sampler(), Sampler(temperature=0), Sampler(top_k=3), Sampler(temperature=1.7, top_p=0.6)]
    seeds, positions = torch.arange(4) + 10, torch.tensor([0, 1, 2, 3])
    together = draw(logits, Warp(samplers, CPU), seeds, positions)
    for i in range(4):
        one = slice(i, i + 1)
        assert (
            draw(logits[one], Warp(samplers[one], CPU), seeds[one], positions[one]).item()
            == together[i].item()
        )
    assert together[1].item() == logits[1].argmax().item()


def test_log_probabilities_are_of_the_unwarped_distribution_and_rounded() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.float64)
    # p = 1/4 and 3/4.
    assert logprobs_of(logits, column(0)).item() == pytest.approx(math.log(0.25))
    assert rounded(math.log(0.75)) == -0.2877
    assert str(rounded(-1e-9)) == "0.0"
