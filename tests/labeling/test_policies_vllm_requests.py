"""What vLLM is asked, without vLLM: stand-ins for its two small modules."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stepward.labeling.policies import vllm
from stepward.labeling.policies.embedded import embedded_folder
from stepward.prm.policy import SampleRequest
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import Prefix, Sampler


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Modules by name; one that is not there cannot be imported."""
    there: dict[str, Any] = {}

    def module(name: str) -> Any:
        if name not in there:
            raise ImportError(name)
        return there[name]

    monkeypatch.setattr(vllm, "_module", module)
    vllm._tokens_input.cache_clear()
    yield there
    vllm._tokens_input.cache_clear()


def test_an_engine_that_has_its_own_form_of_a_prompt_gets_it(modules: dict[str, Any]) -> None:
    modules["vllm.inputs.engine"] = SimpleNamespace(
        tokens_input=lambda ids: {"type": "token", "prompt_token_ids": ids}
    )
    assert vllm.engine_prompt([1, 5]) == {"type": "token", "prompt_token_ids": [1, 5]}


@pytest.mark.parametrize("older", [None, SimpleNamespace()])
def test_an_older_engine_gets_a_dict_of_ids(modules: dict[str, Any], older: Any) -> None:
    if older is not None:
        modules["vllm.inputs.engine"] = older
    assert vllm.engine_prompt([1, 5]) == {"prompt_token_ids": [1, 5]}


def test_every_field_of_the_sampler_and_the_requests_own_seed_reach_the_engine(
    modules: dict[str, Any],
) -> None:
    modules["vllm.sampling_params"] = SimpleNamespace(
        SamplingParams=lambda **fields: fields, RequestOutputKind=SimpleNamespace(FINAL_ONLY="final")
    )
    tokenizer = load_tokenizer(embedded_folder())
    sampler = Sampler(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, max_tokens=50, stop=("\n",))
    request = SampleRequest(Prefix("p", (1, 5, 6)), sampler, (1 << 62) + 3, 0, want_logprobs=True)
    # 20 tokens of context less 3 of the prompt leave 17.
    asked = vllm.sampling_params(request, tokenizer, 20)
    assert asked == {
        "n": 1, "seed": (1 << 62) + 3, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "max_tokens": 17,
        "stop": ["\n"], "stop_token_ids": [2], "include_stop_str_in_output": True, "skip_special_tokens": False,
        "detokenize": True, "logprobs": 0, "output_kind": "final",
    }  # fmt: skip
