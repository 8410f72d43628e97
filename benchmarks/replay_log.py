"""The log behind the replay benchmark: 64 rollouts at every prefix of sampled solutions of generated problems.

    python -m benchmarks.replay_log [FOLDER] [--level default] [--problems 500] [--solutions 8] [--budget-tokens N]

It is an ordinary labelling run (``stepward label``: solutions and rollouts tables, seeds, manifest) of the shipped
checkpoint in float32, with 64 rollouts at the prefixes 0..T-1, on problems of the held-out split, whose first errors
a machine can check. A run that was ended goes on where it stopped. FOLDER is outside the repository: by default
STEPWARD_CACHE or ~/.cache/stepward, then replay_LEVEL.
"""

import argparse
import asyncio
import os
import time
from pathlib import Path

from stepward.flows.config import LabelConfig, SamplerConfig
from stepward.flows.label import Progress, label
from stepward.labeling.policies.embedded import embedded_folder

ROLLOUTS = 64
BATCH_SIZE = 512
MAX_TOKENS = 200
"""A solution has some 30 tokens; a run-away is cut and counted as truncated."""
SEED = 20
PROBLEM_SEED = 4


def log_folder(level: str) -> Path:
    """Where the log of a level lies unless a folder is given."""
    cache = os.environ.get("STEPWARD_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "stepward") / f"replay_{level}"


def log_config(
    folder: Path, level: str, problems: int, solutions: int, batch_size: int, problem_seed: int = PROBLEM_SEED
) -> LabelConfig:
    """The labelling run that is the log. ``genprm_relative`` is a labeler that wants prefix 0 drawn too."""
    return LabelConfig(
        problems=f"generator:{problems}?split=held_out&level={level}&seed={problem_seed}",
        out=folder,
        policy=f"transformers:{embedded_folder()}",
        sampler=SamplerConfig(max_tokens=MAX_TOKENS),
        num_solutions=solutions,
        allocation="fixed_k",
        num_rollouts=ROLLOUTS,
        labeler="genprm_relative",
        seed=SEED,
        shard_problems=20,
        problems_in_flight=8,
        batch_size=batch_size,
    )


def main() -> None:
    """Make the log, or go on with it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--level", default="default")
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--solutions", type=int, default=8)
    parser.add_argument(
        "--problem-seed", type=int, default=PROBLEM_SEED, help="another one: a part of its own"
    )
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    args = parser.parse_args()
    part = "" if args.problem_seed == PROBLEM_SEED else f"-{args.problem_seed}"
    folder = args.folder or log_folder(args.level).with_name(f"replay_{args.level}{part}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    config = log_config(folder, args.level, args.problems, args.solutions, args.batch_size, args.problem_seed)

    def watch(progress: Progress) -> None:
        if progress.problems % 20 == 0:
            print(
                f"{progress.found + progress.problems} of {args.problems} problems, {progress.tokens:,} tokens, "
                f"{progress.tokens / time.process_time():,.0f} a CPU second",
                flush=True,
            )

    asyncio.run(label(config, resume=folder.exists(), watch=watch))


if __name__ == "__main__":
    main()
