"""What the HTTP client costs: CPU a token, descriptors and memory. The server is another process and cheap.

Usage::

    python -m benchmarks.engines_client                       # CPU a token, and ten thousand in flight
    python -m benchmarks.engines_client --rollouts 1000000    # also memory over so many rollouts

The stand-in speaks HTTP/1.1 over raw sockets and answers what vLLM answers, the prompt's ids and the usage
included, after a pause; completions are made beforehand, so that nearly all work measured is the client's.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from benchmarks.report import Row, write
from stepward.labeling.policies.vllm_server import VllmServerPolicy, load_vllm_server
from stepward.prm.policy import SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Prefix, Sampler

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "src" / "stepward" / "labeling" / "policies" / "embedded_checkpoint"

PROMPT_TOKENS = 100
US_PER_TOKEN = 60.0
"""The goal: CPU microseconds of the client for each generated token at 1,000 sequences in flight."""
GROWTH_MIB = 8.0
"""Flat memory: what the process may grow between the first tenth of the rollouts and the last."""


class _Exchange(asyncio.Protocol):
    """One connection of the stand-in: reads whole requests, answers each after the pause."""

    def __init__(self, answers: list[tuple[bytes, bytes]], delay_s: float) -> None:
        self.answers, self.delay_s = answers, delay_s
        self.buffer = b""
        self.served = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + length:
                return
            body = self.buffer[end + 4 : end + 4 + length]
            self.buffer = self.buffer[end + 4 + length :]
            asyncio.get_running_loop().call_later(self.delay_s, self.answer, head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if self.transport.is_closing():
            return
        if head.startswith(b"get"):
            path = head.split(b" ", 2)[1]
            told = _MODELS if path == b"/v1/models" else b'{"version":"0.0-stand-in"}'
        else:
            start = body.index(b'"prompt":') + 9
            prompt = body[start : body.index(b"]", start) + 1]
            before, after = self.answers[self.served % len(self.answers)]
            self.served += 1
            told = before + prompt + after
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(told)
            + told
        )


_MODELS = b'{"object":"list","data":[{"id":"stand-in","root":"","max_model_len":4096}]}'


def _answers(num_tokens: int) -> list[tuple[bytes, bytes]]:
    """Completions as vLLM writes them, cut where the prompt's ids go."""
    draw = random.Random(0)
    made: list[tuple[bytes, bytes]] = []
    for i in range(64):
        ids = [draw.randrange(3, 250) for _ in range(num_tokens)]
        choice = {
            "index": 0, "text": "x" * 3 * num_tokens, "logprobs": None, "finish_reason": "stop", "stop_reason": None,
            "prompt_logprobs": None, "token_ids": ids, "prompt_token_ids": "HERE",
        }  # fmt: skip
        usage = {
            "prompt_tokens": PROMPT_TOKENS,
            "total_tokens": PROMPT_TOKENS + num_tokens,
            "completion_tokens": num_tokens,
            "prompt_tokens_details": {"cached_tokens": 96},
        }
        whole = {
            "id": f"cmpl-{i:032x}",
            "object": "text_completion",
            "created": 1_700_000_000,
            "model": "stand-in",
            "choices": [choice],
            "usage": usage,
        }
        before, after = json.dumps(whole).split('"HERE"')
        made.append((before.encode(), after.encode()))
    return made


async def _serve(num_tokens: int, delay_s: float) -> None:
    answers = _answers(num_tokens)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Exchange(answers, delay_s), "127.0.0.1", 0, backlog=20_000
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    # The parent closes our input when it ends, whatever ends it.
    await asyncio.to_thread(sys.stdin.read)


@contextmanager
def stand_in(num_tokens: int, delay_s: float) -> Iterator[str]:
    """A running stand-in's base URL."""
    command = [sys.executable, "-m", "benchmarks.engines_client", "--serve", str(num_tokens), str(delay_s)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()


@asynccontextmanager
async def _connected(url: str, in_flight: int) -> AsyncIterator[VllmServerPolicy]:
    policy = await asyncio.to_thread(
        load_vllm_server, url, tokenizer=CHECKPOINT, max_in_flight=in_flight, deadline_s=300
    )
    try:
        yield policy
    finally:
        await policy.close()


def _request(i: int) -> SampleRequest:
    prefix = Prefix(f"p{i % 50}", tuple(range(5, 5 + PROMPT_TOKENS)))
    return SampleRequest(prefix, Sampler(max_tokens=1000), derive_seed(0, i), i)


async def _window(policy: VllmServerPolicy, count: int, in_flight: int, every: int = 0) -> list[float]:
    """Draw ``count`` rollouts with ``in_flight`` at a time, keep none; the memory after each ``every``, in MiB."""
    numbers = iter(range(count))
    done = 0
    memory: list[float] = []

    async def worker() -> None:
        nonlocal done
        for i in numbers:
            rollout = await policy.sample(_request(i))
            assert rollout.outcome is None, rollout.error
            done += 1
            if every and done % every == 0:
                memory.append(_resident_mib())

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return memory


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def cpu_per_token(num_tokens: int, requests: int = 20_000, in_flight: int = 1000) -> Row:
    """CPU microseconds of this process for a generated token."""
    with stand_in(num_tokens, 0.05) as url:
        async with _connected(url, in_flight) as policy:
            await _window(policy, in_flight, in_flight)
            start = time.process_time()
            await _window(policy, requests, in_flight)
            seconds = time.process_time() - start
    return Row(
        f"client CPU a generated token, {in_flight:,} in flight over HTTP, {num_tokens} tokens a rollout [us]",
        round(seconds / (requests * num_tokens) * 1e6, 2),
        goal=US_PER_TOKEN,
        lower_is_better=True,
    )


async def many_in_flight(count: int = 10_000, waves: int = 4) -> list[Row]:
    """Descriptors and memory before and after waves of requests that are all in flight at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(count, hard - 200)
    try:
        with stand_in(30, 3.0) as url:
            before = _descriptors()
            most = 0
            memory: list[float] = []
            async with _connected(url, count) as policy:
                for _ in range(waves):
                    wave = asyncio.gather(*(policy.sample(_request(i)) for i in range(count)))
                    while not wave.done():
                        most = max(most, _descriptors() - before)
                        await asyncio.sleep(0.25)
                    assert all(r.outcome is None for r in await wave)
                    del wave
                    gc.collect()
                    memory.append(_resident_mib())
            await asyncio.sleep(1)
            left = _descriptors() - before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return [
        Row("most connections open at once", most, goal=0.99 * count),
        Row(
            f"descriptors left after {waves} waves of {count:,} in flight", left, goal=0, lower_is_better=True
        ),
        Row(
            f"memory after wave {waves} less after wave 1, {count:,} in flight [MiB]",
            round(memory[-1] - memory[0], 1),
            goal=GROWTH_MIB,
            lower_is_better=True,
        ),
    ]


async def flat_memory(rollouts: int, in_flight: int = 1000) -> list[Row]:
    """What the process grows over so many rollouts, and their CPU."""
    before = _descriptors()
    with stand_in(30, 0.05) as url:
        async with _connected(url, in_flight) as policy:
            start = time.process_time()
            memory = await _window(policy, rollouts, in_flight, max(1, rollouts // 20))
            seconds = time.process_time() - start
            tokens = policy.usage.generated_tokens
    await asyncio.sleep(1)
    tenth = memory[1]
    return [
        Row(
            f"memory growth from {rollouts // 10:,} to {rollouts:,} rollouts [MiB]",
            round(max(memory[1:]) - tenth, 1),
            goal=GROWTH_MIB,
            lower_is_better=True,
        ),
        Row(f"memory at the end of {rollouts:,} rollouts [MiB]", round(memory[-1], 1)),
        Row(
            f"client CPU a generated token over {rollouts:,} rollouts [us]",
            round(seconds / tokens * 1e6, 2),
            goal=US_PER_TOKEN,
            lower_is_better=True,
        ),
        Row(
            f"descriptors left after {rollouts:,} rollouts",
            _descriptors() - before,
            goal=0,
            lower_is_better=True,
        ),
    ]


def client_rows(rollouts: int = 0) -> list[Row]:
    """All figures of the client; memory over ``rollouts`` only where asked for."""
    rows = [asyncio.run(cpu_per_token(n)) for n in (8, 30, 128)]
    rows += asyncio.run(many_in_flight())
    if rollouts:
        rows += asyncio.run(flat_memory(rollouts))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=0, help="also measure memory over so many rollouts")
    parser.add_argument("--serve", nargs=2, metavar=("TOKENS", "DELAY_S"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(_serve(int(options.serve[0]), float(options.serve[1])))
        return
    write("engines", client_rows(options.rollouts), keep_others=True)


if __name__ == "__main__":
    main()
