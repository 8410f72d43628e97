"""A reward model on a vLLM pooling server: ids go out, the head's raw outputs of every id come back.

Scores are read by position here, where the solution was encoded, and never by the server: vLLM's step pooling gives an
empty list, without a word, when its tag is not in the prompt. Whatever has not the expected shape is an error and
never a score. ``serving`` says how a checkpoint is served; ``stepward serve`` starts the server.
"""
# pyright: basic

import json
import math
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepward.prm.errors import EngineError, ModelError
from stepward.prm.models.inputs import EncodedSolution, InputRefused, SolutionEncoder
from stepward.prm.models.serving import read_inputs
from stepward.prm.types import Problem, Step

if TYPE_CHECKING:
    import httpx

    from stepward.prm.models.folder import PrmDescription

OUTPUTS = {"scalar": 1, "two_class": 2, "mlp": 2, "vocabulary": 2}
PROBE = "So 12 + 30 = 42, and the answer is 42."
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class ServedRewardModel:
    """Scores solutions on a server. Made by ``load_served``.

    Attributes:
        name: The served name, and the head.
        url: The server's, without a path.
        model: What requests call the model.
        inputs: How solutions become ids: of the checkpoint that the server loaded.
        description: What the checkpoint says of itself.
        context_length: Most ids of a solution.
        max_in_flight: Most requests at once.
        most_tries: Tries a request on faults of the server, the first included.
        pause_s: First pause between tries.
    """

    name: str
    url: str
    model: str
    inputs: SolutionEncoder = field(repr=False)
    description: "PrmDescription" = field(repr=False)
    context_length: int
    max_in_flight: int
    most_tries: int
    pause_s: float
    _client: "httpx.Client" = field(repr=False)

    def score(
        self, problems: Sequence[Problem | str], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...]]:
        """P(step is right) for each step.

        Args:
            problems: One a solution; a plain text stands for a problem.
            solutions: Step texts without separators.

        Returns:
            For each solution as many floats in [0, 1] as it has steps.

        Raises:
            InputRefused: A solution has no steps, a blank one, or more ids than the server takes.
            EngineError: The server failed on a solution every time, or answered with something else than scores.
            ModelError: A score is not finite, or the two lists differ in length.
        """
        return _all_scored(self.score_each(problems, solutions))

    def score_each(
        self, problems: Sequence[Problem | str], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...] | EngineError]:
        """Like ``score``, with the error of a solution that the server failed on in its place: never a number."""
        if len(problems) != len(solutions):
            raise ModelError(
                f"{len(problems)} problems for {len(solutions)} solutions; give one problem a solution"
            )
        asked = [Problem(id="", statement=p) if isinstance(p, str) else p for p in problems]
        encoded = [self.inputs.encode(p, s) for p, s in zip(asked, solutions, strict=True)]
        return self._score(asked, encoded)

    def score_steps(
        self, problems: Sequence[Problem], solutions: Sequence[Sequence[Step]], tokenizer_hash: str
    ) -> list[tuple[float, ...]]:
        """The same for steps with sampled ids, which are used where their tokenizer is the model's own."""
        encode = self.inputs.encode
        encoded = [
            encode(p, s, tokenizer_hash=tokenizer_hash) for p, s in zip(problems, solutions, strict=True)
        ]
        return _all_scored(self._score(problems, encoded))

    def close(self) -> None:
        """Close the connections; the server goes on."""
        self._client.close()

    def _score(
        self, problems: Sequence[Problem], encoded: Sequence[EncodedSolution]
    ) -> list[tuple[float, ...] | EngineError]:
        for problem, solution in zip(problems, encoded, strict=True):
            if len(solution.token_ids) > self.context_length:
                raise InputRefused(
                    "over the token limit",
                    f"a solution of problem {problem.id} has {len(solution.token_ids)} ids and {self.name} takes "
                    f"{self.context_length}",
                )
        with ThreadPoolExecutor(max_workers=max(1, min(self.max_in_flight, len(encoded)))) as pool:
            return list(pool.map(self._score_one, problems, encoded))

    def _score_one(self, problem: Problem, solution: EncodedSolution) -> tuple[float, ...] | EngineError:
        what = f"scoring a solution of problem {problem.id or '(unnamed)'} with {self.name}"
        try:
            rows = self._outputs(solution.token_ids, what)
        except EngineError as fault:
            return fault
        scores = tuple(probability(self.description.head.kind, rows[end]) for end in solution.step_ends)
        if not all(math.isfinite(s) for s in scores):
            raise ModelError(f"{what}: a score is not finite; serve it with --dtype float32")
        return scores

    def _outputs(self, ids: Sequence[int], what: str) -> list[list[float]]:
        """The head's raw outputs of every id, ``[ids, outputs]``."""
        body = {
            "model": self.model,
            "input": list(ids),
            "task": "token_classify",
            "use_activation": False,
            "encoding_format": "float",
        }
        fault = ""
        for attempt in range(self.most_tries):
            if attempt:
                time.sleep(random.uniform(0, self.pause_s * 2**attempt))
            answer, fault = _post(self._client, self.url + "/pooling", body, what)
            if answer is not None:
                return checked_outputs(
                    answer, len(ids), OUTPUTS[self.description.head.kind], f"{what} (task token_classify)"
                )
        raise EngineError(f"{what}: {fault}, after {self.most_tries} tries", retryable=True)


def _all_scored(scores: Sequence[tuple[float, ...] | EngineError]) -> list[tuple[float, ...]]:
    for found in scores:
        if isinstance(found, EngineError):
            raise found
    return [s for s in scores if not isinstance(s, EngineError)]


def probability(kind: str, raw: Sequence[float]) -> float:
    """P(step is right) from the raw outputs of a head: scalar, two_class, mlp or vocabulary."""
    logit = raw[0] if OUTPUTS[kind] == 1 else raw[1] - raw[0]
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    return math.exp(logit) / (1 + math.exp(logit))


def checked_outputs(answer: Any, num_ids: int, outputs: int, what: str) -> list[list[float]]:
    """The rows of a pooling answer.

    Raises:
        EngineError: Not one row an id with the head's outputs: an embedding, a score a step, or nothing.
    """
    try:
        (item,) = answer["data"]
        rows = [[float(x) for x in row] for row in item["data"]]
    except (KeyError, TypeError, ValueError) as fault:
        raise EngineError(
            f"{what}: the answer is no list of scores: {json.dumps(answer)[:200]}; the model must be served with "
            "--runner pooling and the task token_classify (stepward serve does)"
        ) from fault
    if not rows:
        raise EngineError(
            f"{what}: the server gave an empty list for {num_ids} ids. Step pooling does so, silently, when its "
            'step_tag_id is not an id of the prompt; serve with --pooler-config {"tok_pooling_type": "ALL"} '
            "(stepward serve does)"
        )
    widths = {len(row) for row in rows}
    if len(rows) != num_ids or widths != {outputs}:
        raise EngineError(
            f"{what}: the answer has the shape [{len(rows)}, {'/'.join(map(str, sorted(widths)))}] and "
            f"[{num_ids}, {outputs}] is wanted: one row an id with the head's {outputs} outputs. The server pools "
            "steps or embeds, or serves another head; start it with stepward serve"
        )
    return rows


def load_served(
    url: str,
    *,
    folder: str | Path | None = None,
    model: str | None = None,
    adapter: str | None = None,
    api_key: str | None = None,
    max_in_flight: int = 32,
    deadline_s: float = 300.0,
    most_tries: int = 5,
    pause_s: float = 0.5,
) -> ServedRewardModel:
    """Connect to a reward model that ``stepward serve`` or another vLLM pooling server serves.

    Args:
        url: Such as ``http://127.0.0.1:8000``; ``vllm:`` before it and ``/v1`` behind it change nothing.
        folder: The checkpoint, folder or Hub id; None takes what the server says that it loaded.
        model: The served name; None takes the only one.
        adapter: Layout of a published model where its config and name do not tell.
        api_key: Sent as a bearer token.
        max_in_flight: Most requests at once.
        deadline_s: Longest wait for one answer.
        most_tries: Tries a request on faults of the server.
        pause_s: First pause between tries.

    Raises:
        EngineError: The server does not answer, refuses the key, or does not score ids.
        ModelError: It does not serve the model, or with another tokenizer than the checkpoint's.
    """
    import httpx

    root = url.removeprefix("vllm:").rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=max_in_flight)
    client = httpx.Client(headers=headers, timeout=deadline_s, limits=limits, trust_env=False)
    card = _served_card(client, root, model)
    name = str(card["id"])
    from stepward.prm.models.hub import local_folder

    try:
        found = local_folder(folder or str(card.get("root") or name))
    except ModelError as fault:
        raise ModelError(
            f"connecting to {root}: {fault}. The checkpoint that the server loaded is needed here too, for its "
            "tokenizer and prm.json: name its folder"
        ) from fault
    inputs, description = read_inputs(found, str(folder or name), adapter)
    kind = description.head.kind
    if kind not in OUTPUTS:
        raise ModelError(f"{name} has the head {kind}, which vLLM does not serve; load its folder in process")
    served = ServedRewardModel(
        name=f"{name} ({kind}, served)",
        url=root,
        model=name,
        inputs=inputs,
        description=description,
        context_length=int(card.get("max_model_len") or 1 << 30),
        max_in_flight=max_in_flight,
        most_tries=most_tries,
        pause_s=pause_s,
        _client=client,
    )
    _check_tokenizer(served)
    served._outputs(inputs.tokenizer.encode(PROBE), f"probing {name} at {root}")
    return served


def _served_card(client: "httpx.Client", root: str, model: str | None) -> dict[str, Any]:
    import httpx

    try:
        response = client.get(root + "/v1/models")
    except (httpx.HTTPError, httpx.InvalidURL) as fault:
        raise EngineError(
            f"connecting to {root}: {type(fault).__name__}: {fault}; is the server up? stepward serve CHECKPOINT "
            "starts one",
            retryable=True,
        ) from fault
    if response.status_code in (401, 403):
        raise EngineError(
            f"connecting to {root}: the key is refused (HTTP {response.status_code}); set api_key"
        )
    try:
        cards = {str(card["id"]): card for card in response.json()["data"]}
    except (ValueError, KeyError, TypeError) as fault:
        raise EngineError(
            f"connecting to {root}: /v1/models answers HTTP {response.status_code} and no list of models; a vLLM "
            "server's URL is wanted"
        ) from fault
    if model is None and len(cards) == 1:
        return next(iter(cards.values()))
    if model not in cards:
        raise ModelError(
            f"connecting to {root}: it serves {', '.join(cards) or 'nothing'} and not {model!r}; name one of these"
        )
    return cards[model]


def _check_tokenizer(served: ServedRewardModel) -> None:
    """The server's tokenizer must cut a text as the checkpoint's does: ids of another one are other words."""
    tokenizer = served.inputs.tokenizer
    marker = getattr(served.inputs, "marker", None)
    spelt = {i: text for text, i in getattr(tokenizer, "specials", {}).items()}
    text = PROBE + spelt.get(marker, "")
    body = {"model": served.model, "prompt": text, "add_special_tokens": False}
    answer, _ = _post(served._client, served.url + "/tokenize", body, "probing", refused_is_none=True)
    if answer is None or not isinstance(answer.get("tokens"), list):
        return  # a server without tokenizer takes ids all the same
    theirs, ours = answer["tokens"], list(tokenizer.encode(text))
    if theirs != ours:
        raise ModelError(
            f"connecting to {served.url}: {served.model} is served with another tokenizer than its checkpoint's: "
            f"{text!r} is {theirs} there and {ours} here ({getattr(tokenizer, 'vocab_size', '?')} ids"
            + ("" if marker is None else f", marker {marker}")
            + "); name the folder that the server loaded"
        )


def _post(
    client: "httpx.Client", url: str, body: dict[str, Any], what: str, *, refused_is_none: bool = False
) -> tuple[Any, str]:
    """(answer, "") or, where asking again may help, (None, the fault).

    Raises:
        EngineError: The server refuses the request for good.
    """
    import httpx

    try:
        response = client.post(url, json=body)
    except httpx.HTTPError as fault:
        return None, f"{type(fault).__name__}: {fault}"
    if response.status_code in _RETRIED:
        return None, f"HTTP {response.status_code}: {response.text[:200]}"
    if response.status_code != 200:
        if refused_is_none:
            return None, ""
        raise EngineError(
            f"{what}: {url} refuses it (HTTP {response.status_code}): {response.text[:300]}; a server of vLLM's "
            "pooling runner is wanted, as stepward serve starts it"
        )
    try:
        return response.json(), ""
    except ValueError:
        return None, f"half a response or no JSON: {response.text[-80:]!r}"
