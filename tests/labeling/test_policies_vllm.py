"""Real vLLM with the embedded checkpoint: the server and the engine in process.

Run with ``pytest -m vllm``; the environment variable STEPWARD_VLLM_PYTHON names an interpreter that has vLLM, and
for the engine in process jinja2 and tokenizers, which vLLM brings along.
"""

import asyncio
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stepward.labeling.policies.embedded import embedded_folder, load_embedded
from stepward.labeling.policies.vllm_server import load_vllm_server
from stepward.prm.errors import EngineError
from stepward.prm.policy import SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.types import FinishReason, Prefix, Rollout, Sampler

pytestmark = pytest.mark.vllm

SOURCE = Path(__file__).resolve().parents[2] / "src"
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}
PROMPTS = (
    "Tom has 3 apples. He gets 4 more. How many apples does he have?\n",
    "Ann has 20 pears. She gives away 6 of them. How many pears does she have?\n",
    "There are 5 boxes with 7 pens each. How many pens are there?\n",
)


@pytest.fixture(scope="module")
def interpreter() -> str:
    path = os.environ.get("STEPWARD_VLLM_PYTHON")
    if not path:
        pytest.skip("STEPWARD_VLLM_PYTHON names no interpreter with vLLM")
    return path


@pytest.fixture(scope="module")
def server(interpreter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    command = [
        interpreter, "-m", "vllm.entrypoints.openai.api_server", "--model", str(embedded_folder()),
        "--served-model-name", "embedded", "--dtype", "float32", "--enforce-eager", "--block-size", "32",
        "--host", "127.0.0.1", "--port", str(port), "--enable-prompt-tokens-details",
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(command, env=os.environ | SETTINGS, stdout=out, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 600
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                    break
                except (urllib.error.URLError, OSError):
                    if process.poll() is not None or time.monotonic() > deadline:
                        pytest.fail(f"vLLM did not start:\n{log.read_text()[-3000:]}")
                    time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(60)


def requests(sampler: Sampler, draws: int = 2) -> list[SampleRequest]:
    tokenizer = load_embedded().tokenizer
    asked: list[SampleRequest] = []
    for p, text in enumerate(PROMPTS):
        prefix = Prefix(f"p{p}", (1, *tokenizer.encode_start(text)))
        asked += [SampleRequest(prefix, sampler, derive_seed(0, p, k), k, True) for k in range(draws)]
    return asked


async def exact(asked: list[SampleRequest]) -> list[Rollout]:
    policy = load_embedded()
    rollouts = await asyncio.gather(*(policy.sample(r) for r in asked))
    await policy.close()
    return rollouts


def assert_same(got: list[Rollout], want: list[Rollout]) -> None:
    for ours, theirs in zip(got, want, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert ours.text == theirs.text
        assert ours.finish_reason is theirs.finish_reason
        # float32 against float64.
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-3)


async def test_the_server_gives_the_greedy_tokens_of_the_transformers_engine(server: str) -> None:
    asked = requests(Sampler(temperature=0, max_tokens=60), draws=1)
    want = await exact(asked)
    policy = await asyncio.to_thread(load_vllm_server, server, tokenizer=embedded_folder())
    # The ids that the server continued are compared with those sent, in every answer.
    assert_same(await asyncio.gather(*(policy.sample(r) for r in asked)), want)
    middle = [
        replace(r, prefix=Prefix(r.prefix.problem_id, r.prefix.prompt_ids, w.token_ids[:6], 1))
        for r, w in zip(asked, want, strict=True)
    ]
    assert_same(await asyncio.gather(*(policy.sample(r) for r in middle)), await exact(middle))
    await policy.close()


async def test_the_server_draws_from_the_seed_stops_in_text_and_scores(server: str) -> None:
    policy = await asyncio.to_thread(load_vllm_server, server, tokenizer=embedded_folder())
    asked = requests(Sampler(max_tokens=60), draws=4)
    first = await asyncio.gather(*(policy.sample(r) for r in asked))
    again = [await policy.sample(r) for r in asked[:4]]
    assert [r.token_ids for r in again] == [r.token_ids for r in first[:4]]
    assert len({r.token_ids for r in first}) > 6
    stopped = await policy.sample(
        replace(asked[0], sampler=Sampler(temperature=0, max_tokens=60, stop=("\n",)))
    )
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.text.count("\n") == 1
    assert stopped.text.endswith("\n")
    scores = await policy.loglikelihood(asked[0].prefix, first[0].token_ids)
    assert scores == pytest.approx(first[0].logprobs, abs=2e-3)
    with pytest.raises(EngineError, match=r"p9.*do not fit"):
        await policy.sample(replace(asked[0], prefix=Prefix("p9", (5,) * 2000)))
    await policy.close()


IN_PROCESS = """
import asyncio, json, sys
from stepward.labeling.policies.vllm import load_vllm
from stepward.prm.policy import SampleRequest
from stepward.prm.types import Prefix, Sampler

async def main():
    policy = load_vllm(sys.argv[1], dtype="float32", enforce_eager=True, block_size=32)
    asked = [
        SampleRequest(Prefix(f"p{i}", tuple(ids)), Sampler(temperature=t, max_tokens=60), 7 + i, 0, True)
        for t in (0, 1.0, 1.0) for i, ids in enumerate(json.loads(sys.argv[2]))
    ]
    rollouts = await asyncio.gather(*(policy.sample(r) for r in asked))
    scores = await policy.loglikelihood(asked[0].prefix, rollouts[0].token_ids)
    print("RESULT" + json.dumps({
        "rollouts": [[r.token_ids, r.text, r.finish_reason, r.logprobs] for r in rollouts],
        "scores": scores, "version": policy.version,
    }))
    await policy.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_the_engine_in_process_gives_the_same_greedy_tokens(interpreter: str, tmp_path: Path) -> None:
    asked = requests(Sampler(temperature=0, max_tokens=60), draws=1)
    want = await exact(asked)
    script = tmp_path / "in_process.py"
    script.write_text(IN_PROCESS)
    prompts = json.dumps([list(r.prefix.token_ids) for r in asked])
    done = await asyncio.to_thread(
        subprocess.run,
        [interpreter, str(script), str(embedded_folder()), prompts],
        env=os.environ | SETTINGS | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert lines, done.stdout[-1500:] + done.stderr[-3000:]
    result = json.loads(lines[0].removeprefix("RESULT"))
    greedy, drawn, again = (result["rollouts"][i * 3 : i * 3 + 3] for i in range(3))
    for (ids, text, reason, logprobs), rollout in zip(greedy, want, strict=True):
        assert tuple(ids) == rollout.token_ids
        assert (text, reason) == (rollout.text, rollout.finish_reason)
        assert logprobs == pytest.approx(rollout.logprobs, abs=2e-3)
    assert [d[0] for d in drawn] == [a[0] for a in again]
    assert result["scores"] == pytest.approx(want[0].logprobs, abs=2e-3)
