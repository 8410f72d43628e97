"""A transformers causal language model, called with positions and a cache of our own.

Everything that differs between models and releases of transformers stands here: the name of the cache
argument, sliding windows, layers that compute in float32 whatever the weights are, and a check that the model
really attends where it is told to.
"""

import inspect
from pathlib import Path
from typing import Any, cast

import torch

from stepward.labeling.policies.kv_cache import CopiedPrefixes, RowCache
from stepward.labeling.policies.shared_prefixes import ATTENTION_NAME, SharedPrefixes, attention, end_step
from stepward.prm.errors import ModelError

_ATTENTION_KINDS: frozenset[str] = frozenset({"full_attention", "sliding_attention"})


class CausalModel:
    """Logits at chosen positions.

    Args:
        model: A transformers model with a language-model head, in evaluation mode.
        name: What errors call it.

    Raises:
        ModelError: Its layers are not plain attention, so that rows of different lengths cannot share a batch.
    """

    def __init__(self, model: Any, name: str) -> None:
        self.name = name
        self._model = model
        config = model.config.get_text_config()
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.context_length = _context_length(config, name)
        arguments = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"
        self._keeps = "logits_to_keep" in arguments
        kinds: set[str] = set(getattr(config, "layer_types", None) or ())
        recurrent = kinds - _ATTENTION_KINDS
        if recurrent or getattr(model, "_is_stateful", False) or "position_ids" not in arguments:
            raise ModelError(
                f"loading {name}: its layers ({', '.join(sorted(recurrent)) or 'recurrent or without position ids'}) "
                "are not plain attention, which this engine needs; run it with the vllm engine"
            )
        window = getattr(config, "sliding_window", None)
        if getattr(config, "use_sliding_window", True) is False:
            window = None
        self._window: int | None = window
        self._mixed = "sliding_attention" in kinds
        self.shares_prefixes = False

    def logits(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: RowCache, *, keep: int = 1
    ) -> torch.Tensor:
        """Logits after the last ``keep`` of the given ids.

        Args:
            ids: [rows, new tokens].
            positions: [rows, new tokens], each row ascending; what a row has before them is in the cache.
            cache: Keys and values of these rows, updated.
            keep: How many of the new tokens get logits.

        Returns:
            [rows, keep, vocabulary].
        """
        length = cache.begin(positions)
        arguments: dict[str, Any] = {self._cache_argument: cache, "use_cache": True}
        if self._keeps:
            arguments["logits_to_keep"] = keep
        output = self._model(
            input_ids=ids, position_ids=positions, attention_mask=self._mask(positions, length), **arguments
        )
        return output.logits[:, -keep:]

    def next_logits(self, ids: torch.Tensor, cache: SharedPrefixes | CopiedPrefixes) -> torch.Tensor:
        """Logits after one new token a row of a decode batch, [rows, vocabulary].

        Args:
            ids: [rows, 1].
            cache: The batch's keys and values, updated.
        """
        positions = cache.begin(self.device)
        if isinstance(cache, CopiedPrefixes):
            return self.logits(ids, positions, cache.rows)[:, -1]
        # The attention makes its own masks; a ready one keeps transformers from making another.
        unused = torch.zeros(len(ids), 1, 1, 1, dtype=self.dtype, device=self.device)
        arguments: dict[str, Any] = {self._cache_argument: cache, "use_cache": True}
        try:
            output = self._model(input_ids=ids, position_ids=positions, attention_mask=unused, **arguments)
        finally:
            end_step()
        return output.logits[:, -1]

    def _mask(self, positions: torch.Tensor, length: int) -> Any:
        """Additive masks, [rows, 1, new tokens, length]: a token sees itself and what is before it."""
        reach = torch.arange(length, device=positions.device)
        full = reach <= positions.unsqueeze(-1)
        if self._window is None:
            return self._additive(full)
        near = full & (reach > positions.unsqueeze(-1) - self._window)
        if not self._mixed:
            return self._additive(near)
        return {"full_attention": self._additive(full), "sliding_attention": self._additive(near)}

    def _additive(self, seen: torch.Tensor) -> torch.Tensor:
        zero = torch.zeros((), dtype=self.dtype, device=seen.device)
        return torch.where(seen, zero, torch.finfo(self.dtype).min).unsqueeze(1)

    @torch.inference_mode()
    def check(self) -> None:
        """Compare ragged, cached decoding with the model's own computation, and share prefixes where that is exact.

        Raises:
            ModelError: They differ: the model would sample from another distribution than its own.
        """
        count = min(12, self.context_length - 1)
        ids = (torch.arange(count, device=self.device) * 7 + 1) % self.vocab_size
        want = self._model(input_ids=ids[None], use_cache=False).logits[0].to(torch.float64)
        allowed = {torch.float64: 1e-5, torch.float32: 1e-3}.get(self.dtype, 0.05) * (
            float(want.abs().max()) + 1e-9
        )
        if self._window is None:
            self._model.set_attn_implementation(ATTENTION_NAME)
            try:
                self.shares_prefixes = self._distance(ids, want, SharedPrefixes(2)) <= allowed
            except (NotImplementedError, RuntimeError):
                self.shares_prefixes = False
            if self.shares_prefixes:
                return
            self._model.set_attn_implementation("sdpa")
        worst = self._distance(ids, want, CopiedPrefixes(2))
        if not worst <= allowed:
            raise ModelError(
                f"checking {self.name}: logits of a mixed batch differ from the model's own by {worst:.2g} "
                f"({allowed:.2g} is allowed in {self.dtype}); run this architecture with the vllm engine"
            )

    def _distance(
        self, ids: torch.Tensor, want: torch.Tensor, cache: SharedPrefixes | CopiedPrefixes
    ) -> float:
        """Largest difference of logits when two rows of different lengths go on from one prefix."""
        count = len(ids)
        half = count // 2
        first = RowCache(1)
        self.logits(ids[None, :half], torch.arange(half, device=self.device)[None], first)
        prefix = first.stored(0, tuple(range(half)))
        cache.enter([(prefix, half), (prefix, half - 1)])
        worst = 0.0
        for i in range(half, count - 1):
            logits = self.next_logits(ids[[i, i - 1]][:, None], cache).to(torch.float64)
            worst = max(worst, float((logits - want[[i, i - 1]]).abs().max()))
        return worst


def load_causal_model(
    folder: Path, *, name: str, device: str, dtype: torch.dtype, exact: bool
) -> CausalModel:
    """Load a checkpoint folder: safetensors only, code from the checkpoint never.

    Args:
        folder: With ``config.json`` and ``*.safetensors``.
        name: What errors and rows call it.
        device: Such as ``cpu`` or ``cuda:0``.
        dtype: Of weights and computation.
        exact: Also keep norms in ``dtype``; most models compute them in float32.

    Raises:
        ModelError: The folder holds no checkpoint that can be loaded so.
    """
    import transformers

    foreign = cast(Any, transformers)
    foreign.AttentionInterface.register(ATTENTION_NAME, attention)
    foreign.AttentionMaskInterface.register(ATTENTION_NAME, foreign.masking_utils.sdpa_mask)
    loader = foreign.AutoModelForCausalLM
    if not list(folder.glob("*.safetensors")):
        raise ModelError(
            f"loading {name}: the folder has no *.safetensors; other weight files can run code and are not read. "
            "Convert it with save_pretrained(..., safe_serialization=True)"
        )
    foreign.utils.logging.disable_progress_bar()  # the command's own progress line is enough
    try:
        model = loader.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError, ImportError) as fault:
        raise ModelError(
            f"loading {name}: {fault}. Accepted are causal language models that transformers knows without code from "
            "the checkpoint and whose attention can be scaled_dot_product_attention"
        ) from fault
    model = model.to(device).eval()
    if exact:
        _keep_norms_in_dtype(model)
    called = CausalModel(model, name)
    called.check()
    return called


class _Norm(torch.nn.Module):
    """RMSNorm (Zhang and Sennrich 2019) in the dtype of its input."""

    def __init__(self, weight: torch.nn.Parameter, epsilon: float, offset: float) -> None:
        super().__init__()
        self.weight, self.epsilon, self.offset = weight, epsilon, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * (self.weight + self.offset)


def _keep_norms_in_dtype(model: Any) -> None:
    """Replace norms that round to float32 inside, where a plain RMSNorm is what they compute.

    A float32 rounding turns differences of 1e-16 between batch sizes into 1e-7, which now and then would show
    in a stored log-probability.
    """
    for parent in list(model.modules()):
        for child_name, child in list(parent.named_children()):
            epsilon = getattr(child, "variance_epsilon", getattr(child, "eps", None))
            if (
                "RMSNorm" not in type(child).__name__
                or epsilon is None
                or getattr(child, "weight", None) is None
            ):
                continue
            probe = torch.linspace(-2, 3, child.weight.shape[-1], dtype=child.weight.dtype)[None]
            for offset in (0.0, 1.0):
                own = _Norm(child.weight, float(epsilon), offset)
                with torch.inference_mode():
                    same = torch.allclose(own(probe), child(probe), rtol=1e-5, atol=1e-6)
                if same:
                    setattr(parent, child_name, own)
                    break


def _context_length(config: Any, name: str) -> int:
    for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = getattr(config, key, None)
        if isinstance(value, int):
            return value
    raise ModelError(
        f"loading {name}: its config names no context length (max_position_embeddings or n_positions)"
    )
