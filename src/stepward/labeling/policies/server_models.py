"""What a server says of itself before the first rollout: a wrong URL, key or model is named at once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from stepward.labeling.policies.http_pool import shown_url
from stepward.prm.errors import EngineError

_BLOCK_SIZE = re.compile(r'^vllm:cache_config_info\{[^}]*\bblock_size="(\d{1,6})"', re.M)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its server names it.

    Attributes:
        name: What requests must call it.
        root: What the server loaded: a Hub id, or a folder on its machine; empty where it does not say.
        context_length: Most tokens of prompt and completion, or None where it does not say.
        version: The server's version, or empty.
        block_size: Tokens a block of its prefix cache, or None where its metrics do not say.
    """

    name: str
    root: str
    context_length: int | None
    version: str
    block_size: int | None = None


def ask_servers(
    base_urls: Sequence[str], model: str | None, *, api_key: str | None, timeout_s: float = 30.0
) -> ServedModel:
    """Ask every server for its models.

    Args:
        base_urls: All must serve the same model.
        model: The name wanted; None takes the only one.
        api_key: Sent as a bearer token.
        timeout_s: Longest wait for an answer.

    Raises:
        EngineError: A server does not answer, refuses the key, or does not serve the model.
    """
    if not base_urls:
        raise EngineError(
            "connecting to an engine: no base URL was given; give one such as http://127.0.0.1:8000/v1"
        )
    found = [_ask(url.rstrip("/"), model, api_key, timeout_s) for url in base_urls]
    for url, other in zip(base_urls, found, strict=True):
        if (other.name, other.root, other.context_length) != (
            found[0].name,
            found[0].root,
            found[0].context_length,
        ):
            raise EngineError(
                f"connecting to {shown_url(url)}: it serves {other.name} ({other.root}, context "
                f"{other.context_length}) and {shown_url(base_urls[0])} serves {found[0].name} ({found[0].root}, "
                f"context {found[0].context_length}); all servers of one policy must serve the same model"
            )
    return found[0]


def _ask(url: str, model: str | None, api_key: str | None, timeout_s: float) -> ServedModel:
    import httpx

    shown = shown_url(url)
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(headers=headers, timeout=timeout_s, trust_env=False) as client:
            response = client.get(url + "/models")
            version = client.get(url.removesuffix("/v1") + "/version")
            metrics = client.get(url.removesuffix("/v1") + "/metrics")
    except (httpx.HTTPError, httpx.InvalidURL) as fault:
        raise EngineError(
            f"connecting to {shown}: {type(fault).__name__}: {fault}; is the server up, and does the URL end in /v1?",
            retryable=True,
        ) from fault
    if response.status_code in (401, 403):
        raise EngineError(
            f"connecting to {shown}: the key is refused (HTTP {response.status_code}); set api_key"
        )
    if response.status_code != 200:
        raise EngineError(
            f"connecting to {shown}: /models answers HTTP {response.status_code}; the base URL of an OpenAI-compatible "
            "server is wanted, such as http://127.0.0.1:8000/v1"
        )
    try:
        cards = [cast(dict[str, Any], card) for card in response.json()["data"]]
        names = [str(card["id"]) for card in cards]
    except (ValueError, KeyError, TypeError) as fault:
        raise EngineError(
            f"connecting to {shown}: /models gives no list of models; is it such a server?"
        ) from fault
    if model is None and len(names) != 1:
        raise EngineError(f"connecting to {shown}: it serves {', '.join(names) or 'nothing'}; name the model")
    if model is not None and model not in names:
        raise EngineError(
            f"connecting to {shown}: it does not serve {model!r} but {', '.join(names) or 'nothing'}"
        )
    card = cards[0 if model is None else names.index(model)]
    length = card.get("max_model_len")
    try:
        said = str(version.json().get("version", "")) if version.status_code == 200 else ""
    except (ValueError, AttributeError):
        said = ""
    told = _BLOCK_SIZE.search(metrics.text) if metrics.status_code == 200 else None
    return ServedModel(
        str(card["id"]),
        str(card.get("root") or ""),
        length if isinstance(length, int) else None,
        said,
        int(told[1]) if told else None,
    )
