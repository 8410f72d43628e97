"""The discriminative reward model: a transformers backbone, a head at score positions, optionally a reference.

``forward`` runs the backbone without its language-model head and reads hidden states only where a score is asked
for. With a reference, the log-probability of each step token under a frozen language model is an extra input:
a projection of it is added to the token's embedding. It tells the model which tokens surprised the policy.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stepward.prm.errors import ModelError
from stepward.prm.models.batches import PROMPT, Batch
from stepward.prm.models.heads import as_head

LOGPROB_FLOOR = -10.0


class SurprisalInput(nn.Module):
    """Adds a projection of (log-probability, probability) of each step token to its embedding.

    The projection starts at zero, so that training starts from the backbone as it is.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(2, width, bias=False)
        nn.init.zeros_(self.projection.weight)

    def forward(self, embeddings: Tensor, logprobs: Tensor) -> Tensor:
        """``[rows, length, width]`` and ``[rows, length]`` (0 off the steps) -> ``[rows, length, width]``."""
        clipped = logprobs.clamp(min=LOGPROB_FLOOR, max=0.0)
        # A token off the steps has log-probability 0 and surprises nobody: both features are 0 there.
        features = torch.stack([clipped, clipped.exp() - 1], dim=-1)
        return embeddings + self.projection(features.to(embeddings.dtype))


class DiscriminativePRM(nn.Module):
    """Backbone, head and, with a reference, the surprisal input.

    Args:
        backbone: A transformers model that gives ``last_hidden_state``.
        head: See ``heads``.
        surprisal: Present where the model reads a reference's log-probabilities.
        causal: False for an encoder, whose positions see the whole solution.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        surprisal: SurprisalInput | None = None,
        *,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.surprisal = surprisal
        self.causal = causal

    def hidden(self, batch: Batch, logprobs: Tensor | None = None) -> Tensor:
        """Hidden states at the score positions, ``[scores, width]``."""
        inputs = attention_inputs(self.backbone, batch, causal=self.causal)
        if self.surprisal is not None:
            if logprobs is None:
                raise ModelError("this reward model reads a reference's log-probabilities and got none")
            embeddings: Tensor = self.backbone.get_input_embeddings()(batch.input_ids)  # pyright: ignore
            inputs["inputs_embeds"] = self.surprisal(embeddings, logprobs)
        else:
            inputs["input_ids"] = batch.input_ids
        states = self.backbone(**inputs).last_hidden_state
        return states[batch.score_rows, batch.score_columns]

    def forward(self, batch: Batch, logprobs: Tensor | None = None) -> Tensor:
        """Raw head outputs at the score positions, ``[scores, outputs]``, in float32.

        Args:
            batch: See ``batches``.
            logprobs: ``[rows, length]`` from ``reference_logprobs`` where the model has a surprisal input.
        """
        hidden = self.hidden(batch, logprobs)
        return self.head(hidden.to(next(self.head.parameters()).dtype)).float()

    def probability(self, raw: Tensor) -> Tensor:
        """P(step is right), ``[scores]``."""
        return as_head(self.head).probability(raw)


def can_share_prompts(model: Any) -> bool:
    """Whether solutions may stand behind one shared prompt: not in encoders, sliding windows or flash attention."""
    config = model.config
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return window is None and "flash" not in str(getattr(config, "_attn_implementation", ""))


def attention_inputs(backbone: Any, batch: Batch, *, causal: bool) -> dict[str, Any]:
    """Position ids and attention mask so that no solution sees another one or the padding.

    A padded causal batch needs no mask: padding stands to the right of everything that is read. It needs no position
    ids either, and transformers takes those of padding, which begin again at 0, for packed sequences: it then builds a
    mask of length x length for every row, and attention loses its fast causal kernel.

    Raises:
        ModelError: Packing under a sliding window shorter than a row, which a block mask does not express, or
            several packed rows under flash attention.
    """
    inputs: dict[str, Any] = {}
    if causal:
        inputs["use_cache"] = False
    if batch.plain:
        if not causal:
            inputs["attention_mask"] = (batch.segments > 0).long()
        return inputs
    inputs["position_ids"] = batch.position_ids
    length = batch.input_ids.shape[1]
    segments = batch.segments
    shared = segments == PROMPT
    window = getattr(backbone.config, "sliding_window", None)
    if window is not None and window < length and getattr(backbone.config, "use_sliding_window", True):
        raise ModelError(
            f"rows of {length} ids cannot be packed under a sliding window of {window}; do not pack"
        )
    if "flash" in str(getattr(backbone.config, "_attn_implementation", "")):
        if batch.input_ids.shape[0] != 1 or bool(shared.any()):
            raise ModelError(
                "flash attention packs one row a batch and shares no prompts; use row_tokens = micro_batch_tokens"
            )
        return inputs
    if bool(shared.any()) and not causal:
        raise ModelError(
            "an encoder's prompt sees the solution, so solutions cannot share it; use row_tokens"
        )
    allowed = (segments[:, :, None] == segments[:, None, :]) | shared[:, None, :]
    if causal:
        allowed = allowed & torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    dtype = next(backbone.parameters()).dtype
    mask = torch.zeros(allowed.shape, dtype=dtype, device=segments.device)
    inputs["attention_mask"] = mask.masked_fill(~allowed, torch.finfo(dtype).min)[:, None]
    return inputs


@torch.no_grad()
def reference_logprobs(reference: Any, batch: Batch) -> Tensor:
    """Log-probability (natural log) of each step token under a causal language model.

    Args:
        reference: A transformers causal LM with the reward model's tokenizer.
        batch: Padded or packed.

    Returns:
        ``[rows, length]`` float32, 0 on prompt and padding.
    """
    inputs = attention_inputs(reference, batch, causal=True)
    logits = reference(input_ids=batch.input_ids, **inputs).logits.float()
    return token_logprobs(logits, batch)


def token_logprobs(logits: Tensor, batch: Batch) -> Tensor:
    """Log-probability of each step token from ``logits [rows, length, vocabulary]``; 0 elsewhere."""
    # Only step tokens are asked for: the normaliser is a sum over the vocabulary, dear for the rest.
    rows, columns = batch.in_solution.nonzero(as_tuple=True)
    predicted = logits[rows, batch.previous[rows, columns]]
    chosen = predicted.gather(1, batch.input_ids[rows, columns][:, None])[:, 0]
    result = torch.zeros(batch.input_ids.shape, dtype=torch.float32, device=logits.device)
    return result.index_put((rows, columns), chosen - predicted.logsumexp(dim=-1))


def place_logprobs(batch: Batch, rows: Sequence[Tensor]) -> Tensor:
    """Cached log-probabilities of each solution's step ids, laid out like the batch: ``[rows, length]``."""
    result = torch.zeros(batch.input_ids.shape, dtype=torch.float32)
    for (row, column, _, length), values in zip(batch.starts, rows, strict=True):
        result[row, column : column + length] = values
    return result


def take_logprobs(batch: Batch, logprobs: Tensor) -> list[Tensor]:
    """The inverse of ``place_logprobs``: one tensor ``[step ids]`` a solution."""
    return [logprobs[row, column : column + length].clone() for row, column, _, length in batch.starts]
