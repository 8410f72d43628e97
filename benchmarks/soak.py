"""Kill a labelling run at random moments until it is done, again and again; its bytes must be those of a quiet run.

The moments are seeded and uniform over the time that an undisturbed run takes, its start-up included. Some kills are
followed by damage that a crash can do: a shard cut short, a receipt cut short, a temporary file left behind.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from stepward.prm.dataset.integrity import verify

PROBLEMS, SHARD = 120, 3


@dataclass
class Soak:
    """What happened: kills by what they hit, runs that came to their end, and folders that were wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    faults: list[str] = field(default_factory=list)


def write_inputs(folder: Path, num_problems: int = PROBLEMS) -> None:
    """Problems and a log of rollouts to replay: real labelling without a model, fast enough to be killed often."""
    problems, log = [], []
    for i in range(num_problems):
        problems.append({"id": f"sum-{i}", "question": f"What is {i} + {i}?", "answer": str(2 * i)})
        for answer in (2 * i, 2 * i + 1):
            lines = [
                f"We add {i} and {i} to find {answer}.\n",
                f"{i} + {i} = {answer}.\n",
                f"The answer is {answer}.",
            ]
            log.append({"problem_id": f"sum-{i}", "text": "".join(lines)})
            log += [
                {"problem_id": f"sum-{i}", "prefix": "".join(lines[:t]),
                 "text": "".join(lines[t:-1]) + f"The answer is {final}."}
                for t in (1, 2) for final in (answer, 2 * i)
            ]  # fmt: skip
    (folder / "problems.jsonl").write_text("\n".join(map(json.dumps, problems)) + "\n")
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, log)) + "\n")


def command(folder: Path, out: Path, *, prefect: bool) -> list[str]:
    """The labelling run as a user types it."""
    words = [
        sys.executable, "-m", "stepward", "label", str(folder / "problems.jsonl"), "--out", str(out), "--resume",
        "--policy", f"replay:{folder / 'log.jsonl'}", "--num-solutions", "2", "--allocation", "fixed_k",
        "--num-rollouts", "2", "--labeler", "math_shepherd", "--shard-problems", str(SHARD),
    ]  # fmt: skip
    return words if prefect else [*words, "--no-prefect"]


def content(folder: Path) -> dict[str, bytes]:
    """All bytes but times and locks."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
        and "metrics" not in p.name
        and not any(q.startswith(".") for q in p.relative_to(folder).parts)
    }


def soak(
    folder: Path, *, kills: int, prefect_kills: int = 0, seed: int = 0, api_url: str | None = None
) -> Soak:
    """Kill until there were ``kills``, the last ``prefect_kills`` of them in runs under Prefect.

    Args:
        folder: Empty; inputs and datasets are written there.
        kills: How many.
        prefect_kills: Of them, in runs that report to the server at ``api_url``.
        seed: Of the moments and of the damage.
        api_url: A running Prefect server.
    """
    draw = random.Random(seed)
    write_inputs(folder)
    quiet = folder / "quiet"
    began = time.monotonic()
    _run(command(folder, quiet, prefect=False))
    lasts = time.monotonic() - began
    want, result, attempt = content(quiet), Soak(), 0
    while result.kills.total() < kills:
        under_prefect = result.kills.total() >= kills - prefect_kills
        out = folder / f"attempt-{attempt}"
        environment = {"PREFECT_API_URL": api_url or ""} if under_prefect else {}
        done = False
        while not done and result.kills.total() < kills:
            # Longer under Prefect, whose own start-up comes first.
            moment = draw.uniform(0.15, 1.05) * lasts * (3 if under_prefect else 1)
            done = _run(command(folder, out, prefect=under_prefect), moment, environment)
            if not done:
                found = len(list((out / "receipts").glob("*.json"))) if out.is_dir() else 0
                result.kills[_hit(out, found) + (" under Prefect" if under_prefect else "")] += 1
                _damage(out, draw)
        _run(command(folder, out, prefect=False))
        result.finished += 1
        if content(out) != want:
            result.faults.append(f"{out.name}: other bytes than those of the quiet run")
        if not (checked := verify(out)).ok:
            result.faults.append(f"{out.name}: {checked.faults[0]}")
        attempt += 1
    return result


def _run(
    words: list[str], kill_after_s: float | None = None, environment: dict[str, str] | None = None
) -> bool:
    """Run to the end (True), or kill the process and all of its children at the moment (False)."""
    env = os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {})
    process = subprocess.Popen(
        words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, said = process.communicate(timeout=kill_after_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False
    if process.returncode != 0:
        raise RuntimeError(f"a run that was not killed failed: {said[-2000:]}")
    return True


def _hit(out: Path, receipts: int) -> str:
    if not out.is_dir():
        return "before the folder"
    if (out / "manifest.json").is_file():
        return "after sealing"
    if any(out.rglob(".writing-*")):
        return "while a file was written"
    return "between shards" if receipts else "before the first shard"


def _damage(out: Path, draw: random.Random) -> None:
    """Now and then, what a crash of the machine can leave behind."""
    if not out.is_dir() or (out / "manifest.json").is_file() or draw.random() > 0.3:
        return
    kind = draw.choice(("shard", "receipt", "leftover"))
    files = sorted((out / ("receipts" if kind == "receipt" else "solutions")).glob("shard-*"))
    if kind == "leftover":
        (out / ".writing-manifest.json").write_bytes(b"half")
    elif files:
        path = draw.choice(files)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
