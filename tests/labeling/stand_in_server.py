"""A loopback server that speaks the completions API with vLLM's token-id fields, and misbehaves on demand.

Its "model" is arithmetic: token ``i`` of a completion is a hash of the seed and the prompt, so that a test sees
whether the same seed was sent again. It has no weights and shares no code with the engines.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class StandIn:
    """One server.

    Attributes:
        model: The name that it serves.
        api_key: The key that it wants, or None.
        context_length: What it says of itself.
        num_tokens: Length of every completion (less where max_tokens is lower).
        fault: Looks at a request's body and its number and names a fault: ``500``, ``503``, ``429``, ``half``,
            ``drop``, ``hang``, ``garbage``, ``abort``, ``other_model``, ``other_prompt``, ``no_ids``; None serves it.
        requests: Bodies of all completions asked for.
        sessions: Their session headers.
        vocab_size: Sampled ids are below it.
        delay_s: Pause before every answer.
        kills: Whether a request kills the server: all connections break, and it is back at once.
        obeys: Its "model" is one that the sampler reaches: temperature 0 and top_k 1 are greedy (the seed counts for
            nothing), a token depends on the ids before it, scoring agrees with sampling. Faults of it by name:
            ``ignores_seed``, ``seeds_by_place``, ``ignores_temperature``, ``ignores_top_k``, ``adds_start``,
            ``hides_stop``, ``wrong_limit``, ``counts_no_cache``, ``scores_tempered``.
        unlike: Those faults.
    """

    model: str = "stand-in"
    api_key: str | None = None
    context_length: int = 4096
    num_tokens: int = 8
    fault: Callable[[Json, int], str | None] = field(default=lambda body, number: None)
    requests: list[Json] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    vocab_size: int = 256
    delay_s: float = 0.0
    kills: Callable[[Json], bool] = field(default=lambda body: False)
    deaths: int = 0
    obeys: bool = False
    unlike: frozenset[str] = frozenset()
    keep_bodies: bool = True
    served: int = 0
    open_connections: int = 0
    most_connections: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    _server: asyncio.Server | None = None
    _place: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _blocks: set[tuple[int, ...]] = field(default_factory=set)

    async def start(self) -> str:
        """Listen on a free port of the loopback; gives back the base URL."""
        self._server = await asyncio.start_server(
            self._connection, "127.0.0.1", 0, limit=1 << 22, backlog=20_000
        )
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def stop(self) -> None:
        """Stop listening and break all connections."""
        assert self._server is not None
        self._server.close()

    def completion(self, prompt: list[int] | str, seed: int, count: int) -> list[int]:
        """The ids that a seed gives on a prompt."""
        key = f"{seed}|{prompt}".encode()
        return [
            int.from_bytes(hashlib.blake2b(key + b"%d" % i, digest_size=4).digest()) % (self.vocab_size - 40)
            + 33
            for i in range(count)
        ]

    def _obeyed(self, body: Json, count: int) -> list[int]:
        """Token by token: each from the ids before it and the seed, whatever was the prompt and what was sampled."""
        prompt = list(body["prompt"])
        greedy = (body["temperature"] == 0 and "ignores_temperature" not in self.unlike) or (
            body.get("top_k") == 1 and "ignores_top_k" not in self.unlike
        )
        seed: Any = "greedy" if greedy else body["seed"]
        if "ignores_seed" in self.unlike:
            seed = 0
        if "seeds_by_place" in self.unlike and not greedy:
            self._place = (self._place + 1) % 16
            return [self._token(self._place, str(i)) for i in range(count)]
        if "adds_start" in self.unlike:
            prompt = [1, *prompt]
        ids: list[int] = []
        for _ in range(count):
            ids.append(self._token(seed, str(prompt + ids)))
        return ids

    def _token(self, seed: Any, context: str) -> int:
        digest = hashlib.blake2b(f"{seed}|{context}".encode(), digest_size=4).digest()
        # One of the printable bytes of the tests' tokenizer, so that text and offsets are plain.
        return int.from_bytes(digest) % 90 + 5

    def _logprob(self, context: list[int], token: int) -> float:
        return -0.25 if token == self._token("greedy", str(context)) else -4.0 - token / 1000

    def _score(self, choice: Json, body: Json, ids: list[int]) -> None:
        prompt = list(body["prompt"])
        if body.get("logprobs") is not None:
            scale = 2.0 if "scores_tempered" in self.unlike else 1.0
            choice["logprobs"] = {
                "token_logprobs": [scale * self._logprob(prompt + ids[:i], t) for i, t in enumerate(ids)]
            }
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = [
                {str(t): {"logprob": self._logprob(prompt[:i], t)}} for i, t in enumerate(prompt)
            ]
        if "hides_stop" in self.unlike and body.get("stop"):
            choice["token_ids"] = ids[:1]

    def _cached(self, prompt: list[int]) -> int:
        """Tokens of the prompt, in whole blocks of 16, that an earlier prompt began with."""
        blocks = [tuple(prompt[:n]) for n in range(16, len(prompt), 16)]
        known = max((len(b) for b in blocks if b in self._blocks), default=0)
        self._blocks.update(blocks)
        return known

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_connections += 1
        self._writers.add(writer)
        self.most_connections = max(self.most_connections, self.open_connections)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open_connections -= 1
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, path, _ = first.split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if self.api_key is not None and headers.get("authorization") != f"Bearer {self.api_key}":
            # Some servers repeat the key that they refuse.
            return self._answer(
                writer, 401, {"error": {"message": f"bad key {headers.get('authorization', '')}"}}
            )
        if method == "GET" and path == "/v1/models":
            card = {"id": self.model, "root": "", "max_model_len": self.context_length}
            return self._answer(writer, 200, {"object": "list", "data": [card]})
        if method == "GET" and path == "/health":
            return self._answer(writer, 200, {})
        if method == "GET" and path == "/version":
            return self._answer(writer, 200, {"version": "0.0-stand-in"})
        if method == "POST" and path == "/v1/completions":
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            try:
                return await self._completions(writer, json.loads(body), headers)
            finally:
                self.in_flight -= 1
        return self._answer(writer, 404, {"detail": "Not Found"})

    async def _completions(self, writer: asyncio.StreamWriter, body: Json, headers: dict[str, str]) -> bool:
        number = self.served
        self.served += 1
        if self.keep_bodies:
            self.requests.append(body)
            self.sessions.append(headers.get("x-session-id", ""))
        fault = self.fault(body, number)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.kills(body):
            self.deaths += 1
            for other in list(self._writers):
                other.transport.abort()
            return False
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "drop":
            return False
        if fault in ("500", "502", "503", "429"):
            return self._answer(writer, int(fault), {"error": {"message": "engine is unwell"}})
        if body["model"] != self.model:
            return self._answer(
                writer, 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
            )
        answer = self._completed(body, fault)
        if fault == "garbage":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n<html>not")
            return True
        if fault == "half":
            data = json.dumps(answer).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(data) + data[: len(data) // 2]
            )
            await writer.drain()
            return False
        return self._answer(writer, 200, answer)

    def _completed(self, body: Json, fault: str | None) -> Json:
        prompt = body["prompt"]
        count = min(self.num_tokens, body["max_tokens"])
        if "wrong_limit" in self.unlike:
            count = self.num_tokens
        ids = (
            self._obeyed(body, count) if self.obeys else self.completion(prompt, body.get("seed") or 0, count)
        )
        choice: Json = {
            "index": 0,
            "text": "".join(map(chr, ids)),
            "token_ids": ids,
            "prompt_token_ids": prompt if isinstance(prompt, list) else None,
            "finish_reason": "length" if count == body["max_tokens"] else "stop",
            "logprobs": None if body.get("logprobs") is None else {"token_logprobs": [-0.123456] * count},
        }
        if self.obeys:
            self._score(choice, body, ids)
        if fault == "abort":
            choice["finish_reason"] = "abort"
        if fault == "other_prompt":
            choice["prompt_token_ids"] = prompt[1:]
        if fault == "no_ids":
            del choice["token_ids"], choice["prompt_token_ids"]
        usage = {
            "prompt_tokens": len(prompt) + ("adds_start" in self.unlike),
            "completion_tokens": count,
            "total_tokens": len(prompt) + count,
        }
        if self.obeys and "counts_no_cache" not in self.unlike:
            usage["prompt_tokens_details"] = {"cached_tokens": self._cached(prompt)}
        model = "another" if fault == "other_model" else self.model
        return {"id": "cmpl-1", "model": model, "choices": [choice], "usage": usage}

    def _answer(self, writer: asyncio.StreamWriter, status: int, body: Json) -> bool:
        data = json.dumps(body).encode()
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % (status, len(data))
            + data
        )
        return True
