"""The transformers engine: any causal language model of the Hub or of a folder, on CPU or GPU."""

from dataclasses import dataclass
from pathlib import Path

from stepward.labeling.policies.admission import check_prefix, check_request
from stepward.labeling.policies.checkpoints import locate_checkpoint
from stepward.labeling.policies.decode_thread import DecodeThread
from stepward.labeling.policies.decoding import Decoder, new_row
from stepward.labeling.policies.model_call import CausalModel, load_causal_model
from stepward.prm.errors import ModelError
from stepward.prm.policy import SampleRequest
from stepward.prm.tokenizer import JsonTokenizer, load_tokenizer
from stepward.prm.types import PolicyInfo, Prefix, Rollout, TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class TransformersPolicy:
    """A policy on a transformers model. Made by ``load_transformers``.

    Log-probabilities are of the model's own distribution (temperature 1, before top_k, top_p and min_p),
    natural log, rounded to 4 decimals.

    Attributes:
        info: Name, revision and engine.
        tokenizer: The model's.
        context_length: Most tokens of prompt and completion together.
        deterministic: True where the engine is exact and on CPU.
        folder: Where the checkpoint lies, for its chat template.
        decoder: The batch, for its counts of prefilled and decoded tokens.
    """

    info: PolicyInfo
    tokenizer: JsonTokenizer
    context_length: int
    deterministic: bool
    folder: Path
    decoder: Decoder
    _thread: DecodeThread

    async def sample(self, request: SampleRequest) -> Rollout:
        """Draw one rollout; requests that wait at the same time share a batch."""
        check_request(request, self.context_length, self.decoder.model.vocab_size)
        return await self._thread.sample(new_row(request, self.context_length))

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        """Log-probability (natural log, temperature 1, 4 decimals) of each id of ``continuation``."""
        what = f"scoring a continuation of prefix {prefix.num_steps} of problem {prefix.problem_id}"
        check_prefix(prefix, continuation, what, self.context_length, self.decoder.model.vocab_size)
        if not continuation:
            return ()
        return await self._thread.loglikelihood(prefix.token_ids, continuation)

    async def close(self) -> None:
        """End the worker thread."""
        await self._thread.close()


def load_transformers(
    name: str | Path,
    *,
    revision: str | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    exact: bool = False,
    batch_size: int = 64,
    prefix_cache_mib: int = 256,
    engine: str = "transformers",
) -> TransformersPolicy:
    """Load a policy from a checkpoint folder or the Hub.

    Args:
        name: A folder, or a Hub id.
        revision: A commit or tag of the Hub id.
        device: Such as ``cpu`` or ``cuda:0``.
        dtype: ``float32``, ``bfloat16``, ``float64`` ...; None is float32 on CPU and bfloat16 elsewhere.
        exact: float64 and one thread: the same tokens for any batch size, order and concurrency.
        batch_size: Most rollouts sampled at once.
        prefix_cache_mib: Memory for the keys and values of prompts and solutions.
        engine: What rows call the engine.

    Raises:
        ModelError: The checkpoint cannot be loaded, or its tokenizer has more ids than the model.
    """
    import torch

    if batch_size < 1:
        raise ModelError(f"loading {name}: batch_size {batch_size} is below 1")
    if exact and dtype not in (None, "float64"):
        raise ModelError(
            f"loading {name}: exact=True computes in float64, not in {dtype}; leave one of the two out"
        )
    chosen = "float64" if exact else dtype or ("float32" if device == "cpu" else "bfloat16")
    torch_dtype = getattr(torch, chosen, None)
    if not isinstance(torch_dtype, torch.dtype) or not torch_dtype.is_floating_point:
        raise ModelError(
            f"loading {name}: {chosen!r} is no dtype; give float64, float32, bfloat16 or float16"
        )
    found = locate_checkpoint(name, revision)
    tokenizer = load_tokenizer(found.folder)
    model = load_causal_model(found.folder, name=found.name, device=device, dtype=torch_dtype, exact=exact)
    _check_vocabulary(tokenizer, model)
    decoder = Decoder(model, tokenizer, batch_size, prefix_cache_mib << 20)
    return TransformersPolicy(
        info=PolicyInfo(name=found.name, revision=found.revision, engine=engine),
        tokenizer=tokenizer,
        context_length=model.context_length,
        deterministic=exact and model.device.type == "cpu",
        folder=found.folder,
        decoder=decoder,
        _thread=DecodeThread(decoder, name=found.name, num_threads=1 if exact else None),
    )


def _check_vocabulary(tokenizer: JsonTokenizer, model: CausalModel) -> None:
    if tokenizer.vocab_size > model.vocab_size:
        raise ModelError(
            f"loading {model.name}: the tokenizer has {tokenizer.vocab_size} ids and the model {model.vocab_size}; "
            "the tokenizer belongs to another model"
        )
