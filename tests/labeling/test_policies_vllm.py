"""Real vLLM, server and engine in process, with the embedded checkpoint and with SmolLM2-135M-Instruct.

Run with ``pytest -m vllm``; the environment variable STEPWARD_VLLM_PYTHON names an interpreter that has vLLM, and
for the engine in process jinja2 and tokenizers, which vLLM brings along.
"""

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepward.labeling.policies.embedded import embedded_folder, load_embedded
from stepward.labeling.policies.vllm_server import load_vllm_server
from stepward.prm.errors import EngineError
from stepward.prm.policy import SampleRequest
from stepward.prm.prompts import chat_template
from stepward.prm.seeds import derive_seed
from stepward.prm.tokenizer import load_tokenizer
from stepward.prm.types import FinishReason, Prefix, Problem, Rollout, Sampler

pytestmark = pytest.mark.vllm

KEY = "a-key-of-the-tests"
PROMPTS = (
    "Tom has 3 apples. He gets 4 more. How many apples does he have?\n",
    "Ann has 20 pears. She gives away 6 of them. How many pears does she have?\n",
    "There are 5 boxes with 7 pens each. How many pens are there?\n",
)


@pytest.fixture(scope="module")
def server(start_vllm: Any) -> str:
    flags = ("--served-model-name", "embedded", "--enable-prompt-tokens-details", "--api-key", KEY)
    return start_vllm(embedded_folder(), *flags).wait().url


@pytest.fixture(scope="module")
def smollm2_server(server: str, start_vllm: Any, smollm2: Path) -> str:
    # After the other one is up: two at once would only wait for each other.
    return start_vllm(smollm2, "--max-model-len", "512").wait().url


@pytest.fixture(scope="module")
def by_transformers(smollm2: Path) -> list[tuple[list[int], list[int]]]:
    """(prompt ids, greedy ids) of SmolLM2 by transformers alone: its tokenizer, its template, its generate."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    found: list[tuple[list[int], list[int]]] = []
    # Beside two servers, more threads only wait for one another.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for text in PROMPTS:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        out = model.generate(torch.tensor([ids]), max_new_tokens=30, do_sample=False)
        found.append((ids, out[0, len(ids) :].tolist()))
    torch.set_num_threads(threads)
    return found


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
    policy = await asyncio.to_thread(load_vllm_server, server, api_key=KEY)
    # The ids that the server continued are compared with those sent, in every answer.
    assert_same(await asyncio.gather(*(policy.sample(r) for r in asked)), want)
    middle = [
        replace(r, prefix=Prefix(r.prefix.problem_id, r.prefix.prompt_ids, w.token_ids[:6], 1))
        for r, w in zip(asked, want, strict=True)
    ]
    assert_same(await asyncio.gather(*(policy.sample(r) for r in middle)), await exact(middle))
    await policy.close()


async def test_the_server_draws_from_the_seed_stops_in_text_and_scores(server: str) -> None:
    policy = await asyncio.to_thread(load_vllm_server, server, api_key=KEY)
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


async def test_a_wrong_key_a_wrong_name_and_an_empty_completion_of_a_real_server(server: str) -> None:
    with pytest.raises(EngineError, match="key is refused") as raised:
        await asyncio.to_thread(load_vllm_server, server, api_key="another")
    assert "another" not in str(raised.value)
    with pytest.raises(EngineError, match="does not serve 'gpt' but embedded"):
        await asyncio.to_thread(load_vllm_server, server, model="gpt", api_key=KEY)
    policy = await asyncio.to_thread(load_vllm_server, server, api_key=KEY)
    assert policy.version.startswith("vllm 0.")
    # After a whole solution there is nothing to say but the end token: no text, and no fault.
    (asked, *_), sampler = requests(Sampler(), draws=1), Sampler(temperature=0, max_tokens=120)
    solution = await policy.sample(replace(asked, sampler=sampler))
    assert solution.finish_reason is FinishReason.STOP
    ended = Prefix("p0", asked.prefix.prompt_ids, solution.token_ids[:-1], 3)
    empty = await policy.sample(replace(asked, prefix=ended, sampler=sampler))
    assert (empty.text, empty.finish_reason, empty.outcome) == ("", FinishReason.STOP, None)
    assert set(empty.token_ids) <= policy.tokenizer.eos_ids
    await policy.close()


async def test_smollm2_gets_the_prompt_and_gives_the_greedy_ids_of_transformers_over_http(
    smollm2: Path, smollm2_server: str, by_transformers: list[tuple[list[int], list[int]]]
) -> None:
    policy = await asyncio.to_thread(load_vllm_server, smollm2_server)
    template = chat_template(policy.folder)
    prompts = [template.render(Problem(f"p{i}", t), policy.tokenizer).ids for i, t in enumerate(PROMPTS)]
    assert prompts == [tuple(ids) for ids, _ in by_transformers]
    # What the server itself makes of the conversation (P087: offline and served prompts are the same).
    assert list(prompts[0]) == await asyncio.to_thread(served_prompt, smollm2_server, PROMPTS[0])
    sampler = Sampler(temperature=0, max_tokens=30)
    asked = [SampleRequest(Prefix(f"p{i}", ids), sampler, i) for i, ids in enumerate(prompts)]
    rollouts = await asyncio.gather(*(policy.sample(r) for r in asked))
    assert [list(r.token_ids) for r in rollouts] == [ids for _, ids in by_transformers]
    # The prompt is known to the engine and the context is the server's, not the model's 8192.
    with pytest.raises(EngineError, match=r"p9.*at most 511"):
        await policy.sample(replace(asked[0], prefix=Prefix("p9", (5,) * 600)))
    await policy.close()


def served_prompt(url: str, text: str) -> list[int]:
    body = {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
    request = urllib.request.Request(
        url.removesuffix("/v1") + "/tokenize",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    return json.loads(urllib.request.urlopen(request, timeout=60).read())["tokens"]


IN_PROCESS = """
import asyncio, json, multiprocessing, os, sys
from stepward.labeling.policies.vllm import load_vllm
from stepward.prm.policy import SampleRequest
from stepward.prm.types import Prefix, Sampler

async def sampled(folder, prompts, temperatures, max_tokens, **options):
    policy = load_vllm(folder, dtype="float32", enforce_eager=True, block_size=32, **options)
    asked = [
        SampleRequest(Prefix(f"p{i}", tuple(ids)), Sampler(temperature=t, max_tokens=max_tokens), 7 + i, 0, True)
        for t in temperatures for i, ids in enumerate(prompts)
    ]
    rollouts = await asyncio.gather(*(policy.sample(r) for r in asked))
    scores = await policy.loglikelihood(asked[0].prefix, rollouts[0].token_ids)
    await policy.close()
    return {
        "rollouts": [[r.token_ids, r.text, r.finish_reason, r.logprobs] for r in rollouts],
        "scores": scores, "version": policy.version,
    }

async def killed(folder, prompts):
    # The same rollouts undisturbed, and while the engine's process is killed with half of them in flight.
    policy = load_vllm(folder, dtype="float32", enforce_eager=True, block_size=32, max_in_flight=8)
    asked = [
        SampleRequest(Prefix(f"p{i}", tuple(ids)), Sampler(max_tokens=60), 31 * i + k, k)
        for k in range(8) for i, ids in enumerate(prompts)
    ]
    want = await asyncio.gather(*(policy.sample(r) for r in asked))
    already = policy.usage.requests

    async def killer():
        while policy.usage.requests < already + len(asked) // 3:
            await asyncio.sleep(0.001)
        for child in multiprocessing.active_children():
            os.kill(child.pid, 9)

    got, _ = await asyncio.gather(asyncio.gather(*(policy.sample(r) for r in asked)), killer())
    restarts = policy._engine.restarts
    await policy.close()
    return {"want": [r.token_ids for r in want], "got": [r.token_ids for r in got], "restarts": restarts}

async def main():
    for job in json.loads(sys.argv[1]):
        run = killed if "killed" in job else sampled
        print("RESULT" + json.dumps(await run(*job.get("of", job.get("killed")), **job["options"])), flush=True)

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_the_engine_in_process_gives_the_same_greedy_tokens_and_survives_a_kill(
    in_vllm: Callable[..., subprocess.CompletedProcess[str]],
    smollm2: Path,
    by_transformers: list[tuple[list[int], list[int]]],
) -> None:
    asked = requests(Sampler(temperature=0, max_tokens=60), draws=1)
    want = await exact(asked)
    prompts = [list(r.prefix.token_ids) for r in asked]
    jobs = [
        {"of": [str(embedded_folder()), prompts, [0, 1.0, 1.0], 60], "options": {}},
        {
            "of": [str(smollm2), [ids for ids, _ in by_transformers], [0], 30],
            "options": {"max_model_len": 512},
        },
        {"killed": [str(embedded_folder()), prompts], "options": {}},
    ]
    done = await asyncio.to_thread(in_vllm, IN_PROCESS, json.dumps(jobs))
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    assert len(lines) == 3, done.stdout[-1500:] + done.stderr[-3000:]
    embedded, smol, killed = (json.loads(line.removeprefix("RESULT")) for line in lines)
    greedy, drawn, again = (embedded["rollouts"][i * 3 : i * 3 + 3] for i in range(3))
    for (ids, text, reason, logprobs), rollout in zip(greedy, want, strict=True):
        assert tuple(ids) == rollout.token_ids
        assert (text, reason) == (rollout.text, rollout.finish_reason)
        assert logprobs == pytest.approx(rollout.logprobs, abs=2e-3)
    assert [d[0] for d in drawn] == [a[0] for a in again]
    assert embedded["scores"] == pytest.approx(want[0].logprobs, abs=2e-3)
    assert [ids for ids, *_ in smol["rollouts"]] == [ids for _, ids in by_transformers]
    texts = [text for _, text, *_ in smol["rollouts"]]
    assert texts == [load_tokenizer(smollm2).decode(tuple(ids)) for _, ids in by_transformers]
    assert "model runner V" in smol["version"]
    assert killed["restarts"] == 1
    assert killed["got"] == killed["want"]
    assert len({tuple(ids) for ids in killed["got"]}) > 12
