"""What engines cost and what Stepward adds to them. All figures of one part come from one run, in CPU seconds.

Usage::

    OMP_NUM_THREADS=1 python benchmarks/engines.py embedded      # decode loop, policy, transformers' generate
    python benchmarks/engines.py http                            # client cost against a stand-in server
    STEPWARD_VLLM_PYTHON=... python benchmarks/engines.py vllm    # raw engine and policy, in vLLM's interpreter

Rollouts are those of a labelling: solutions are sampled first, then K rollouts at each of their prefixes.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepward.prm.policy import SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Prefix, Sampler

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "src" / "stepward" / "labeling" / "policies" / "embedded_checkpoint"


def problem_text(i: int) -> str:
    a, b, c = 2 + i * 7 % 40, 3 + i * 11 % 30, 1 + i * 5 % 9
    return f"Tom has {a} apples. He gets {b} more. He gives away {c} of them. How many apples does he have?\n"


async def labelling_requests(policy: Any, problems: int, solutions: int, draws: int) -> list[SampleRequest]:
    """The rollouts that label ``problems * solutions`` sampled solutions."""
    newline = policy.tokenizer.encode("\n")[-1]
    prompts = [(1, *policy.tokenizer.encode_start(problem_text(i))) for i in range(problems)]
    roots = [
        SampleRequest(Prefix(f"p{i}", prompts[i]), Sampler(max_tokens=100), derive_seed(0, i, s), s)
        for i in range(problems)
        for s in range(solutions)
    ]
    sampled = await asyncio.gather(*(policy.sample(root) for root in roots))
    asked: list[SampleRequest] = []
    for root, solution in zip(roots, sampled, strict=True):
        ids = solution.token_ids
        cuts = [0, *(j + 1 for j, token in enumerate(ids) if token == newline)]
        for t, cut in enumerate(cuts):
            prefix = Prefix(root.prefix.problem_id, root.prefix.prompt_ids, ids[:cut], t)
            asked += [
                SampleRequest(prefix, root.sampler, derive_seed(root.seed, t, k), k) for k in range(draws)
            ]
    return asked


def cpu_s(run: Callable[[], int]) -> tuple[float, int]:
    """(CPU seconds of this process, all threads; tokens)."""
    start = time.process_time()
    tokens = run()
    return time.process_time() - start, tokens


def embedded(problems: int, batch_size: int, repeats: int) -> dict[str, Any]:
    """Tokens per CPU second of the decode loop alone, of the policy, and of transformers' own generate."""
    import torch

    from stepward.labeling.policies.decoding import new_row
    from stepward.labeling.policies.embedded import load_embedded

    torch.set_num_threads(1)
    policy = load_embedded(batch_size=batch_size)
    asked = asyncio.run(gathered(policy, problems))
    decoder = policy.decoder

    def raw() -> int:
        rows, tokens = [new_row(r, policy.context_length) for r in asked], 0
        decoder.reset()
        while rows or decoder.rows:
            free = batch_size - len(decoder.rows)
            if rows and free >= min(len(rows), batch_size // 8):
                decoder.admit(rows[:free])
                rows = rows[free:]
            tokens += sum(len(rollout.token_ids) for _, rollout in decoder.step())
        return tokens

    def through() -> int:
        decoder.reset()
        return asyncio.run(sample_all(policy, asked))

    model = policy.decoder.model._model

    def generate() -> int:
        """Transformers as it is: one seed a batch, padded, until the slowest of a batch has ended."""
        model.set_attn_implementation("sdpa")
        tokens = 0
        for start in range(0, len(asked), batch_size):
            part = [r.prefix.token_ids for r in asked[start : start + batch_size]]
            width = max(map(len, part))
            ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in part])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
            with torch.inference_mode():
                out = model.generate(
                    ids,
                    attention_mask=mask,
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=100,
                )
            new = out[:, width:]
            tokens += int((new != 0).sum())
        model.set_attn_implementation("stepward_shared_prefixes")
        return tokens

    rates: dict[str, list[float]] = {"decode_loop": [], "policy": [], "transformers_generate": []}
    for _ in range(repeats):
        for name, run in (("decode_loop", raw), ("policy", through), ("transformers_generate", generate)):
            seconds, tokens = cpu_s(run)
            rates[name].append(tokens / seconds)
    best = {name: max(values) for name, values in rates.items()}
    asyncio.run(policy.close())
    return {
        "rollouts": len(asked),
        "batch_size": batch_size,
        "dtype": "float64",
        "tokens_per_cpu_s": {k: [round(v) for v in values] for k, values in rates.items()},
        "policy_share_of_decode_loop": round(best["policy"] / best["decode_loop"], 3),
        "policy_over_generate": round(best["policy"] / best["transformers_generate"], 2),
    }


async def gathered(policy: Any, problems: int) -> list[SampleRequest]:
    return await labelling_requests(policy, problems, 4, 4)


async def sample_all(policy: Any, asked: list[SampleRequest]) -> int:
    return sum(len(r.token_ids) for r in await asyncio.gather(*(policy.sample(r) for r in asked)))


SERVE = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import stand_in_server
async def main():
    server = stand_in_server.StandIn(keep_bodies=False, num_tokens=int(sys.argv[2]), delay_s=0.05)
    print(await server.start(), flush=True)
    await asyncio.sleep(900)
asyncio.run(main())
"""


def http(requests: int, in_flight: int) -> dict[str, Any]:
    """CPU microseconds of the client for each generated token; the server runs in another process."""
    from stepward.labeling.policies.vllm_server import load_vllm_server

    async def run(url: str) -> tuple[float, int]:
        policy = load_vllm_server(url, tokenizer=CHECKPOINT, max_in_flight=in_flight, deadline_s=300)
        asked = [
            SampleRequest(Prefix(f"p{i % 50}", tuple(range(5, 105))), Sampler(max_tokens=1000), i)
            for i in range(requests)
        ]
        start = time.process_time()
        tokens = await sample_all(policy, asked)
        seconds = time.process_time() - start
        await policy.close()
        return seconds, tokens

    figures: dict[str, Any] = {"requests": requests, "in_flight": in_flight}
    for num_tokens in (30, 128):
        command = [sys.executable, "-c", SERVE, str(ROOT / "tests" / "labeling"), str(num_tokens)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            seconds, tokens = asyncio.run(run(server.stdout.readline().strip()))
        finally:
            server.terminate()
            server.wait()
        figures[f"us_per_token_at_{num_tokens}_tokens"] = round(seconds / tokens * 1e6, 1)
        figures[f"us_per_request_at_{num_tokens}_tokens"] = round(seconds / requests * 1e6)
    return figures


async def vllm_inside(problems: int) -> dict[str, Any]:
    """Runs in vLLM's interpreter: the raw engine and the policy on the same requests."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from stepward.labeling.policies.vllm import load_vllm

    policy = load_vllm(CHECKPOINT, dtype="float32", enforce_eager=True, block_size=32)
    asked = await labelling_requests(policy, problems, 4, 4)
    engine, _ = policy._engine._living()
    number = 0

    async def raw(seeded: bool) -> int:
        nonlocal number

        async def one(request: SampleRequest) -> int:
            nonlocal number
            number += 1
            params = SamplingParams(
                seed=request.seed if seeded else None, temperature=1.0, max_tokens=100, detokenize=False,
                stop_token_ids=sorted(policy.tokenizer.eos_ids), output_kind=RequestOutputKind.FINAL_ONLY,
            )  # fmt: skip
            count = 0
            async for output in engine.generate(
                {"prompt_token_ids": list(request.prefix.token_ids)}, params, f"raw-{number}"
            ):
                count = len(output.outputs[0].token_ids)
            return count

        return sum(await asyncio.gather(*(one(r) for r in asked)))

    rates: dict[str, list[float]] = {"raw_seeded": [], "policy": [], "raw_unseeded": []}
    for _ in range(3):
        for name, run in (
            ("raw_seeded", lambda: raw(True)),
            ("policy", lambda: sample_all(policy, asked)),
            ("raw_unseeded", lambda: raw(False)),
        ):
            start = time.process_time()
            tokens = await run()
            rates[name].append(tokens / (time.process_time() - start))
    cached = policy.usage.cached_tokens / max(1, policy.usage.prompt_tokens)
    # vLLM caches whole blocks, and never the last token of a prompt.
    possible = sum((len(r.prefix.token_ids) - 1) // 32 * 32 for r in asked) / sum(
        len(r.prefix.token_ids) for r in asked
    )
    await policy.close()
    return {
        "vllm": policy.version,
        "rollouts": len(asked),
        "tokens_per_cpu_s": {k: [round(v) for v in values] for k, values in rates.items()},
        "policy_share_of_raw": round(max(rates["policy"]) / max(rates["raw_seeded"]), 3),
        "cached_share_of_prompt_tokens": round(cached, 3),
        "most_that_whole_blocks_allow": round(possible, 3),
    }


def vllm(problems: int) -> dict[str, Any]:
    interpreter = os.environ.get("STEPWARD_VLLM_PYTHON")
    if not interpreter:
        return {"skipped": "STEPWARD_VLLM_PYTHON names no interpreter with vLLM"}
    settings = {
        "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
    command = [interpreter, __file__, "vllm_inside", "--problems", str(problems)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"failed": done.stderr[-2000:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["embedded", "http", "vllm", "vllm_inside"])
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.part == "embedded":
        figures = embedded(options.problems, options.batch_size, options.repeats)
    elif options.part == "http":
        figures = http(options.requests, options.in_flight)
    elif options.part == "vllm":
        figures = vllm(options.problems)
    else:
        figures = asyncio.run(vllm_inside(options.problems))
    text = json.dumps(figures if options.part == "vllm_inside" else {options.part: figures})
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
