"""Requests to one or several servers of the same model: kept alive, repeated on engine faults only.

A fault is whatever may be the engine's own: no connection, a connection that breaks, half a response, a 5xx, a
429, silence over the deadline. It is repeated with a jittered pause, on the next server where there is one; what
is sent stays the same, the seed too. Any other answer is final. Where nobody listens, tries do not count for a
while: a supervisor may be starting the server again. A request whose connection broke twice may be what kills the
server: from then on such requests are sent one at a time, so that only the poison meets its own deaths.
"""

import asyncio
import contextlib
import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from stepward.labeling.policies.http_client import BrokenConnection, HttpClient, Response, parse_target
from stepward.prm.errors import EngineError

Json = dict[str, Any]
T = TypeVar("T")

_RETRIED_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 507, 520, 522, 524, 529})
_MOST_PAUSE_S = 30.0
_MOST_KNOCK_S = 3.0


class EngineFault(Exception):
    """One try failed in a way that may be the engine's own.

    Args:
        kind: A word for run metrics.
        message: What came back.
        wait_s: Shortest pause that the server asks for.
    """

    def __init__(self, kind: str, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.kind, self.wait_s = kind, wait_s


class RequestFailed(Exception):
    """All tries of one request met engine faults.

    Args:
        message: The last fault.
        alone: Whether other requests succeeded in the meantime, so that this one may be the poison.
    """

    def __init__(self, message: str, *, alone: bool) -> None:
        super().__init__(message)
        self.alone = alone


@dataclass(slots=True)
class Usage:
    """What a server engine did, for run metrics. Never in a row.

    Attributes:
        requests: Requests that were answered.
        retries: Tries that met a fault.
        prompt_tokens: Prompt tokens of answered requests.
        cached_tokens: Those of them that the server says came from its prefix cache.
        generated_tokens: Sampled tokens.
        faults: Count of each kind of fault.
    """

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    faults: dict[str, int] = field(default_factory=dict[str, int])


class HttpPool:
    """Connections to servers of one model. Connections are opened by the first request.

    Args:
        base_urls: Such as ``http://127.0.0.1:8000/v1``; requests of one session prefer one of them, so that its
            prefix cache holds their prompt.
        api_key: Sent as a bearer token; never shown in a message.
        max_in_flight: Most requests at once; more wait.
        deadline_s: Longest wait for one answer.
        most_tries: Tries a request, the first included.
        pause_s: First pause between tries; doubled each time, jittered over its whole length.
        restart_s: Longest wait for a server that takes no connection; such tries do not count before.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        *,
        api_key: str | None = None,
        max_in_flight: int = 512,
        deadline_s: float = 600.0,
        most_tries: int = 5,
        pause_s: float = 0.5,
        restart_s: float = 300.0,
    ) -> None:
        self.base_urls = tuple(url.rstrip("/") for url in base_urls)
        self.usage = Usage()
        self._api_key = api_key
        self._max_in_flight = max_in_flight
        self._deadline_s = deadline_s
        self._most_tries = most_tries
        self._pause_s = pause_s
        self._restart_s = restart_s
        self._gate: asyncio.Semaphore | None = None
        self._suspects: asyncio.Lock | None = None
        self._clients: dict[str, HttpClient] = {}
        self._closed = False
        self._jitter = random.Random()

    async def post(self, path: str, body: Json, read: Callable[[Json], T], *, session: str, what: str) -> T:
        """Send a request and give back what ``read`` makes of the answer's JSON object.

        Args:
            path: Below the base URL, such as ``/completions``.
            body: The request.
            read: Reads an answer; may raise EngineFault, which is repeated like a broken connection.
            session: Requests of one session share a prompt; sent as ``x-session-id``.
            what: Begins an error's message.

        Raises:
            RequestFailed: Every try met an engine fault.
            EngineError: The answer is final: a wrong key, URL or model, or a request that the server refuses.
        """
        if self._closed:
            raise EngineError(f"{what}: the engine was closed; load the policy again")
        if self._gate is None:
            self._gate = asyncio.Semaphore(self._max_in_flight)
        self._suspects = self._suspects or asyncio.Lock()
        payload = json.dumps(body, separators=(",", ":")).encode()
        order = self._order(session)
        answered_before = self.usage.requests
        fault, tries, turn, broken = "", 0, 0, 0
        gone_since: float | None = None
        async with self._gate:
            while True:
                url = order[turn % len(order)]
                try:
                    async with self._suspects if broken >= 2 else contextlib.nullcontext():
                        answer = read(await self._try(url, path, payload, session, what))
                    self.usage.requests += 1
                    return answer
                except EngineFault as raised:
                    fault = f"{raised} (from {shown_url(url)})"
                    self.usage.retries += 1
                    self.usage.faults[raised.kind] = self.usage.faults.get(raised.kind, 0) + 1
                    broken += raised.kind == "broken"
                    now = time.monotonic()
                    gone_since = (gone_since or now) if raised.kind == "connect" else None
                    knocking = gone_since is not None and now - gone_since < self._restart_s
                    tries += not knocking
                    if tries >= self._most_tries:
                        break
                    await asyncio.sleep(self._pause(turn, raised.wait_s, knocking))
                    turn += 1
        raise RequestFailed(
            f"{what}: {fault}, after {turn + 1} tries", alone=self.usage.requests > answered_before
        )

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for client in self._clients.values():
            client.close()

    def _order(self, session: str) -> list[str]:
        """All servers, the session's own first: rendezvous hashing, so that a lost server moves only its sessions."""
        if len(self.base_urls) == 1:
            return list(self.base_urls)
        return sorted(self.base_urls, key=lambda url: hashlib.blake2b(f"{url}\0{session}".encode()).digest())

    def _pause(self, turn: int, wait_s: float, knocking: bool) -> float:
        longest = min(self._pause_s * 2 ** min(turn, 16), _MOST_KNOCK_S if knocking else _MOST_PAUSE_S)
        return min(_MOST_PAUSE_S, max(wait_s, self._jitter.uniform(0, longest)))

    def _client(self, url: str, what: str) -> HttpClient:
        if url not in self._clients:
            headers = {"content-type": "application/json", "accept": "application/json"}
            if self._api_key:
                headers["authorization"] = f"Bearer {self._api_key}"
            try:
                target = parse_target(url)
            except ValueError as fault:
                raise EngineError(f"{what}: {shown_url(url)} is no base URL: {fault}") from fault
            self._clients[url] = HttpClient(target, headers, most_idle=self._max_in_flight)
        return self._clients[url]

    async def _try(self, url: str, path: str, payload: bytes, session: str, what: str) -> Json:
        client = self._client(url, what)
        shown = shown_url(url) + path
        try:
            async with asyncio.timeout(self._deadline_s):
                response = await client.post(path, payload, {"x-session-id": _ascii(session)})
        except TimeoutError as fault:
            raise EngineFault("hung", f"no answer within {self._deadline_s:g} s") from fault
        except BrokenConnection as fault:
            raise EngineFault("broken", f"the connection broke: {fault}") from fault
        except OSError as fault:
            raise EngineFault("connect", f"no connection: {fault}") from fault
        if response.status in _RETRIED_STATUS:
            wait = response.headers.get("retry-after", "")
            message = f"HTTP {response.status}: {self._message(response)}"
            raise EngineFault(f"http_{response.status}", message, float(wait) if wait.isdigit() else 0.0)
        if response.status != 200:
            raise EngineError(f"{what}: {_refusal(response.status, shown, self._message(response))}")
        try:
            answer = json.loads(response.body)
        except ValueError as fault:
            raise EngineFault("broken", f"half a response or no JSON: {response.body[-80:]!r}") from fault
        if not isinstance(answer, dict):
            raise EngineFault("broken", f"the answer is no JSON object: {response.body[:80]!r}")
        return cast(Json, answer)

    def _message(self, response: Response) -> str:
        text = response.body.decode("utf-8", "replace")
        try:
            body: Any = json.loads(text)
            inner: Any = body.get("error", body)
            text = str(cast(Json, inner).get("message", "") if isinstance(inner, dict) else inner)
        except (ValueError, AttributeError):
            pass
        if self._api_key:
            text = text.replace(self._api_key, "[key]")
        return text[:300]


def _refusal(status: int, url: str, message: str) -> str:
    if status in (401, 403):
        return f"{url} refuses the key (HTTP {status}): {message}; set the right api_key"
    if status == 404:
        return (
            f"{url} does not know the path or the model (HTTP 404): {message}; check base URL and model name"
        )
    return f"{url} refuses the request (HTTP {status}): {message}"


def shown_url(url: str) -> str:
    """A URL without user and password."""
    return re.sub(r"//[^/@]*@", "//", url)


def _ascii(text: str) -> str:
    """A header's value: problem ids can hold anything."""
    return text if text.isascii() and text.isprintable() else hashlib.sha256(text.encode()).hexdigest()[:16]
