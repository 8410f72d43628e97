"""``stepward verify``: a tool verifier over solutions that exist, and how often it is right where labels exist."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from stepward.prm.evaluation.intervals import Measure, wilson
from stepward.prm.evaluation.readers.processbench import read_items
from stepward.prm.problems import read_solutions
from stepward.prm.types import Problem, Verdict, VerdictKind
from stepward.verifiers.base import Verifier, make_verifier

# Importing a module registers its verifier; a name from elsewhere is found by its entry point.
IN_TREE = {
    "algebra": "stepward.verifiers.algebra",
    "answer": "stepward.verifiers.answer",
    "arithmetic": "stepward.verifiers.arithmetic",
    "judge": "stepward.verifiers.judge",
    "python_code": "stepward.verifiers.python_code",
}
IN_FLIGHT = 256


@dataclass(frozen=True, slots=True)
class VerifierQuality:
    """How a verifier's first refuted step agrees with labelled first errors.

    Attributes:
        solutions: Solutions looked at.
        erroneous: Of them, those with a wrong step.
        flags: Solutions with a refuted step at or before the labelled first error (or in a right solution).
        precision: Share of flags that name the first error exactly.
        recall: Share of erroneous solutions whose first error is named.
        supported: Steps with a supported claim and nothing refuted.
        steps: All steps.
    """

    solutions: int
    erroneous: int
    flags: int
    precision: Measure
    recall: Measure
    supported: int
    steps: int


def verifier_named(name: str, **options: object) -> Verifier:
    """The verifier of that name, in-tree or of another package.

    Raises:
        InputError: There is none.
    """
    if name in IN_TREE:
        import_module(IN_TREE[name])
    return make_verifier(name, **options)


async def verify_all(
    verifier: Verifier, problems: Sequence[Problem], solutions: Sequence[Sequence[str]]
) -> list[list[tuple[Verdict, ...]]]:
    """Verdicts of every step of every solution, in order, many solutions at a time."""
    places = asyncio.Semaphore(IN_FLIGHT)

    async def one(problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        async with places:
            return await verifier.verify(problem, steps)

    return list(await asyncio.gather(*(one(p, s) for p, s in zip(problems, solutions, strict=True))))


def verify_file(path: Path, name: str) -> list[dict[str, Any]]:
    """One row a solution: its steps and the verdicts on each, as JSON values (seconds left out)."""
    rows = list(read_solutions(path))
    steps = [row.steps or tuple((row.text or "").split("\n")) for row in rows]
    problems = [Problem(row.problem_id or str(i), row.problem or "") for i, row in enumerate(rows)]
    verdicts = asyncio.run(verify_all(verifier_named(name), problems, steps))
    return [
        {"problem": p.text, "steps": list(s), "verdicts": [[_plain(v) for v in at_step] for at_step in found]}
        for p, s, found in zip(problems, steps, verdicts, strict=True)
    ]


def measure_verifier(paths: Sequence[Path], name: str) -> VerifierQuality:
    """Precision and recall on ProcessBench-format files; steps after the labelled first error do not count."""
    items = [item for path in paths for item in read_items(path)]
    problems = [Problem(item.id, item.problem) for item in items]
    found = asyncio.run(verify_all(verifier_named(name), problems, [item.steps for item in items]))
    flags = hits = erroneous = supported = steps = 0
    for item, verdicts in zip(items, found, strict=True):
        erroneous += item.first_error is not None
        steps += len(verdicts)
        refuted = [
            t for t, at_step in enumerate(verdicts) if any(v.kind is VerdictKind.REFUTED for v in at_step)
        ]
        kinds = [{v.kind for v in at_step} for at_step in verdicts]
        supported += sum(VerdictKind.SUPPORTED in k and VerdictKind.REFUTED not in k for k in kinds)
        if refuted and (item.first_error is None or refuted[0] <= item.first_error):
            flags += 1
            hits += refuted[0] == item.first_error
    return VerifierQuality(
        len(items), erroneous, flags, wilson(hits, flags), wilson(hits, erroneous), supported, steps
    )


def _plain(verdict: Verdict) -> dict[str, Any]:
    return {k: v for k, v in asdict(verdict).items() if k != "seconds"}
