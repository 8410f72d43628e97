"""Which reward models vLLM can serve, and what it must be told: the flags, and the input without the weights."""
# pyright: basic

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepward.prm.errors import ModelError
from stepward.prm.models.inputs import SolutionEncoder

if TYPE_CHECKING:
    from stepward.prm.models.folder import PrmDescription


def read_inputs(folder: Path, name: str, adapter: str | None) -> "tuple[SolutionEncoder, PrmDescription]":
    """How a checkpoint's solutions become ids, and its head, without its weights.

    Raises:
        ModelError: No reward model, or a published one whose layout vLLM does not serve.
    """
    from transformers import AutoConfig

    from stepward.prm.models.folder import PRM_FILE, PrmDescription, read_description
    from stepward.prm.models.heads import head_spec
    from stepward.prm.models.inputs import InputFormat
    from stepward.prm.models.published import qwen_math_inputs, recognise
    from stepward.prm.tokenizer import load_tokenizer

    if (folder / PRM_FILE).exists():
        own, _ = read_description(folder)
        if own.reference:
            raise ModelError(
                f"{name} reads a reference's log-probabilities, which vLLM does not; load its folder"
            )
        return InputFormat(load_tokenizer(folder), own.step_format, own.prompt, own.max_tokens), own
    kind = adapter or recognise(folder, name)
    if kind != "qwen_math_prm":
        raise ModelError(
            f"{name} has the layout {kind}; of published models vLLM serves qwen_math_prm, others are loaded in process"
        )
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    inputs = qwen_math_inputs(folder, config)
    description = PrmDescription(
        head_spec("mlp"), inputs.step_format, max_tokens=inputs.max_tokens, training={"adapter": kind}
    )
    return inputs, description


def serving_arguments(folder: Path, name: str, adapter: str | None = None) -> list[str]:
    """What vLLM must be told to serve a checkpoint's head on every id.

    Raises:
        ModelError: vLLM has no class for this head; the message names those that it has.
    """
    from stepward.prm.models.folder import PRM_FILE, read_description

    _, description = read_inputs(folder, name, adapter)
    arguments = ["--runner", "pooling"]
    pooler = {"task": "token_classify", "tok_pooling_type": "ALL"}
    kind = description.head.kind
    own = (folder / PRM_FILE).exists()
    layout = read_description(folder)[1] if own else "published"
    if own and layout == "causal_lm" and kind == "vocabulary":
        arguments += ["--convert", "classify", "--hf-overrides", json.dumps(_two_rows(folder, description))]
    elif own and layout != "token_classification":
        raise ModelError(
            f"{name} has the head {kind}, for which vLLM has no class; it serves scalar, two_class (saved as token "
            "classification) and vocabulary heads, and Qwen2.5-Math-PRM. Score it in process: stepward score FOLDER"
        )
    return [*arguments, "--pooler-config", json.dumps(pooler)]


def _two_rows(folder: Path, description: "PrmDescription") -> dict[str, Any]:
    """A language model whose output embedding is read at two ids becomes a classifier of those two."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return {
        "classifier_from_token": [tokenizer.id_to_token(i) for i in description.head.token_ids],
        "method": "no_post_processing",
    }
