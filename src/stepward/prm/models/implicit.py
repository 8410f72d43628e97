"""The implicit reward model: a language model's log-ratio to its reference is the process reward.

q_t = beta * sum over the first t steps' tokens of log pi(token) / pi_ref(token); the step's own reward is
q_t - q_(t-1). Trained on outcomes alone (Yuan et al. 2024, Free Process Rewards without Process Labels).
"""
# pyright: basic

from typing import Any

import torch
from torch import Tensor, nn

from stepward.prm.errors import ModelError
from stepward.prm.models.batches import Batch
from stepward.prm.models.discriminative import attention_inputs, token_logprobs
from stepward.prm.models.heads import HeadSpec


class ImplicitHead(nn.Module):
    """Has no weights: ``raw [n, 1]`` is q_t itself; P(right) = sigmoid(q_t)."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden

    def logit(self, raw: Tensor) -> Tensor:
        return raw[:, 0]

    def probability(self, raw: Tensor) -> Tensor:
        return torch.sigmoid(raw[:, 0])


class ImplicitPRM(nn.Module):
    """A causal language model read as a reward model.

    Args:
        backbone: A causal LM with its output embedding.
        spec: Kind ``implicit``; ``scale`` is beta.
    """

    causal = True
    surprisal = None

    def __init__(self, backbone: Any, spec: HeadSpec) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = ImplicitHead(spec)

    def forward(self, batch: Batch, logprobs: Tensor | None = None) -> Tensor:
        """q at the score positions, ``[scores, 1]``.

        Args:
            batch: Padded or packed.
            logprobs: ``[rows, length]`` of the reference.
        """
        if logprobs is None:
            raise ModelError("an implicit reward model is a ratio: it needs its reference")
        inputs = attention_inputs(self.backbone, batch, causal=True)
        logits = self.backbone(input_ids=batch.input_ids, **inputs).logits.float()
        own = token_logprobs(logits, batch)
        ratio = own - logprobs
        total = ratio.cumsum(dim=1)
        # In a packed row the sum goes on from the solution before: take off what it had reached.
        first = torch.zeros_like(batch.segments, dtype=torch.bool)
        first[:, 1:] = batch.segments[:, 1:] != batch.segments[:, :-1]
        before = _last_value(total - ratio, first)
        at = (batch.score_rows, batch.score_columns)
        return (self.head.spec.scale * (total - before)[at])[:, None]

    def probability(self, raw: Tensor) -> Tensor:
        """sigmoid(q), ``[scores]``."""
        return self.head.probability(raw)


def _last_value(values: Tensor, given: Tensor) -> Tensor:
    """``values`` carried forward along rows from the last column where ``given``; 0 before the first."""
    columns = torch.arange(values.shape[1], device=values.device).expand_as(values)
    last = torch.where(given, columns, -1).cummax(dim=1).values
    return torch.where(last >= 0, values.gather(1, last.clamp(min=0)), 0.0)
