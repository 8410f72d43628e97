"""First solutions with Ray Data LLM: python first_solutions.py problems.jsonl solutions-folder MODEL

The one-pass stage of a run: every problem's solutions are sampled once, with a seed each, and written as files that
``stepward label problems.jsonl --solutions FOLDER`` labels. Runs in Ray's environment (``ray[llm]``), which has its
own pinned vLLM; it needs no Stepward. A row that fails keeps its problem's id and has no text.
"""

import hashlib
import sys

import ray
from ray.data.llm import build_processor, vLLMEngineProcessorConfig

NUM_SOLUTIONS, MAX_TOKENS, TEMPERATURE, RUN_SEED = 8, 1024, 1.0, 0


def seed_of(problem_id: str, index: int) -> int:
    """A seed of its own for each solution: neighbouring seeds, or one for a batch, give correlated samples."""
    digest = hashlib.blake2b(f"{RUN_SEED}|{problem_id}|{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 33  # some engines read 31 bits


def requests(row: dict) -> list[dict]:
    """One request a solution."""
    return [{"problem_id": row["id"], "question": row["question"], "index": i} for i in range(NUM_SOLUTIONS)]


def main(problems: str, out: str, model: str) -> None:
    """Sample all solutions."""
    config = vLLMEngineProcessorConfig(
        model_source=model,
        engine_kwargs={"enable_prefix_caching": True, "max_model_len": 4096, "generation_config": "vllm"},
        concurrency=int(ray.cluster_resources().get("GPU", 1)),
        batch_size=64,
        should_continue_on_error=True,
    )
    processor = build_processor(
        config,
        preprocess=lambda row: {
            "messages": [{"role": "user", "content": row["question"]}],
            "sampling_params": {
                "temperature": TEMPERATURE,
                "max_tokens": MAX_TOKENS,
                "seed": seed_of(str(row["problem_id"]), row["index"]),
            },
        },
        postprocess=lambda row: {
            "problem_id": row["problem_id"],
            "text": row.get("generated_text"),
            "generator": model,
        },
    )
    processor(ray.data.read_json(problems, lines=True).flat_map(requests)).write_json(out)


if __name__ == "__main__":
    main(*sys.argv[1:4])
