"""One token a row from logits, the same token whatever else is in the batch.

Torch has one generator for a whole batch, so a seeded row would depend on its neighbours. Here every (seed,
position, token id) has its own Gumbel noise, from an integer hash, and the argmax of warped logits plus noise
is a draw from the warped distribution (Gumbel 1954; Maddison et al. 2014, "A* Sampling").
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch

from stepward.prm.types import Sampler

# SplitMix64 (Steele, Lea and Flood 2014). Torch has signed 64-bit integers only, which wrap as C's do.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


class Warp:
    """The samplers of a batch as tensors, made anew when the batch changes.

    Args:
        samplers: One a row.
        device: Where the logits are.
    """

    def __init__(self, samplers: Sequence[Sampler], device: torch.device) -> None:
        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float64, device=device).unsqueeze(1)

        self.greedy = torch.tensor([s.temperature == 0 for s in samplers], device=device)
        self.all_greedy = all(s.temperature == 0 for s in samplers)
        self.any_greedy = any(s.temperature == 0 for s in samplers)
        self.temperature = column([s.temperature or 1.0 for s in samplers])
        self.any_tempered = any(s.temperature not in (0, 1) for s in samplers)
        filtered = [
            i for i, s in enumerate(samplers)
            if s.temperature != 0 and (s.top_k > 0 or s.top_p < 1 or s.min_p > 0)
        ]  # fmt: skip
        self.filtered = torch.tensor(filtered, dtype=torch.long, device=device)
        chosen = [samplers[i] for i in filtered]
        self.top_k = torch.tensor([[s.top_k] for s in chosen], dtype=torch.long, device=device).view(-1, 1)
        self.top_p = column([s.top_p for s in chosen])
        self.log_min_p = column([math.log(s.min_p) if s.min_p > 0 else -math.inf for s in chosen])
        self.any_filtered = bool(filtered)

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits of the warped distribution, unnormalised: temperature, then top_k, top_p and min_p.

        Args:
            logits: [rows, vocabulary], float64.
        """
        if self.any_tempered:
            logits = logits / self.temperature
        if not self.any_filtered:
            return logits
        rows = logits[self.filtered]
        ordered, order = rows.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(ordered.shape[1], device=ordered.device)
        drop = (self.top_k > 0) & (rank >= self.top_k)
        mass = ordered.masked_fill(drop, -math.inf).softmax(dim=-1)
        # A token stays while the mass before it is below top_p, so the first always stays.
        drop |= (mass.cumsum(dim=-1) - mass >= self.top_p) & (self.top_p < 1)
        drop |= ordered < ordered[:, :1] + self.log_min_p
        drop[:, 0] = False
        warped = torch.empty_like(rows).scatter_(1, order, ordered.masked_fill(drop, -math.inf))
        return logits.index_copy(0, self.filtered, warped)


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel noise, a pure function of (seed, position, token id).

    Args:
        seeds: [rows], int64.
        positions: [rows], int64: index of the token in the rollout.
        vocab_size: Number of columns.

    Returns:
        [rows, vocabulary], float64. The integers behind it are the same on every device.
    """
    key = _mix(_mix(seeds.clone()) + positions * _GOLDEN)
    stream = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=seeds.device) * _GOLDEN
    bits = _mix(key.unsqueeze(1) + stream)
    # 52 bits and a half: never 0 and never 1, so both logarithms are finite.
    uniform = _shift(bits, 12).to(torch.float64).add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_()


def draw(logits: torch.Tensor, warp: Warp, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One token id a row, [rows]: argmax of warped logits plus noise; of the logits alone at temperature 0.

    Args:
        logits: [rows, vocabulary], float64.
        warp: The samplers of these rows.
        seeds: [rows], int64.
        positions: [rows], int64.
    """
    if warp.all_greedy:
        return logits.argmax(dim=-1)
    tokens = (warp(logits) + gumbel(seeds, positions, logits.shape[1])).argmax(dim=-1)
    return torch.where(warp.greedy, logits.argmax(dim=-1), tokens) if warp.any_greedy else tokens


def logprobs_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Natural log-probability, at temperature 1 and before any warping, of one token a row, [rows]."""
    return logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - logits.logsumexp(dim=-1)


def floats(values: torch.Tensor) -> list[float]:
    """A 1-d tensor as Python floats."""
    return cast(Any, values).tolist()


def integers(values: torch.Tensor) -> list[int]:
    """A 1-d tensor as Python integers."""
    return cast(Any, values).tolist()


def rounded(logprob: float) -> float:
    """As stored: 4 decimals and no negative zero, so that rows are the same bytes for any batch."""
    return round(logprob, 4) + 0.0


def _shift(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift; torch's own keeps the sign."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(z: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser, in place."""
    z ^= _shift(z, 30)
    z *= _MIX_1
    z ^= _shift(z, 27)
    z *= _MIX_2
    z ^= _shift(z, 31)
    return z
