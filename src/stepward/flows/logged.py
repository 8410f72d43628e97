"""Files of solutions, matched with the problems that they solve: to be labelled, or to be replayed as rollouts."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from stepward.labeling.plan import GivenSolution
from stepward.labeling.policies.replay import LoggedRollout, ReplayPolicy, load_replay, replay_policy
from stepward.prm.errors import ConfigError
from stepward.prm.problems import BroughtSolution, read_solutions
from stepward.prm.records import read_records
from stepward.prm.types import Problem


def given_by_problem(path: Path, problems: Sequence[Problem]) -> dict[str, list[GivenSolution]]:
    """The solutions of a file by problem id, in the file's order; every problem has an entry.

    Raises:
        ConfigError: No solution fits any problem.
        ProblemFileError: A row cannot be read.
    """
    given: dict[str, list[GivenSolution]] = {p.id: [] for p in problems}
    for key, brought in _matched(path, problems):
        given[key].append(GivenSolution(key, brought.steps, brought.text, brought.generator))
    return given


def replay_of(path: Path, problems: Sequence[Problem]) -> ReplayPolicy:
    """A policy that replays a file: a log of rollouts by prefix, or whole solutions as rollouts at the root.

    Raises:
        ConfigError: No solution fits any problem.
        ProblemFileError: A row cannot be read.
    """
    _, first = next(iter(read_records(path)))
    if "problem_id" in first and "text" in first:
        return load_replay(path)
    rollouts = [
        LoggedRollout(key, "", brought.text if brought.text is not None else "\n".join(brought.steps))
        for key, brought in _matched(path, problems)
    ]
    content = json.dumps([[r.problem_id, r.text] for r in rollouts], ensure_ascii=False)
    revision = hashlib.sha256(content.encode()).hexdigest()[:16]
    return replay_policy(rollouts, name=path.name, revision=revision)


def _matched(path: Path, problems: Sequence[Problem]) -> list[tuple[str, BroughtSolution]]:
    """(problem id, solution) for each solution of the file that belongs to one of the problems."""
    ids = {p.id for p in problems}
    by_text = {p.text.strip(): p.id for p in problems}
    matched: list[tuple[str, BroughtSolution]] = []
    total = 0
    for brought in read_solutions(path):
        total += 1
        by_id = brought.problem_id if brought.problem_id in ids else None
        key = by_id or by_text.get((brought.problem or "").strip())
        if key is not None:
            matched.append((key, brought))
    if not matched:
        raise ConfigError(
            [
                f"{path}: none of its {total:,} solutions belongs to a problem (neither by problem_id nor by its text)"
            ]
        )
    return matched
