"""Does a problem stand in a benchmark? By normalised text, and by the share of its n-grams that are there.

A match says which benchmark, which of its problems and how much; nothing is removed here. The report goes into the
manifest and the card; ``publish`` refuses to go on where problems match.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepward.prm.audit.text_match import key_of, shingles
from stepward.prm.problems import read_problems
from stepward.prm.records import read_records
from stepward.prm.types import Problem

NGRAM = 8
"""Words an n-gram has. Numbers are masked, so that 8 words are as telling as 13 with numbers."""
MIN_OVERLAP = 0.5
"""Least share of a problem's n-grams that one benchmark problem must hold."""
MIN_WORDS = 12
"""Shorter problems match exactly or not at all: "What is 3 + 4?" has the n-grams of a thousand others."""
MAX_LISTED = 1000
"""Most matches that a note lists by name; the counts cover all."""

DEFAULT_FILES: Mapping[str, Sequence[str]] = {
    "gsm8k_test": ("problems/gsm8k_test.jsonl",),
    "math500": ("problems/math500_test.jsonl",),
    "processbench": tuple(f"processbench/{s}.jsonl" for s in ("gsm8k", "math", "olympiadbench", "omnimath")),
}
"""Benchmarks that are checked where their files are at hand, relative to a data folder."""


@dataclass(frozen=True, slots=True)
class Match:
    """A problem that stands in a benchmark.

    Attributes:
        problem_id: Ours.
        benchmark: Its name.
        number: Which of its problems, from 0.
        kind: ``exact`` or ``near``.
        overlap: Share of our n-grams that this problem holds; 1 where exact.
    """

    problem_id: str
    benchmark: str
    number: int
    kind: str
    overlap: float


@dataclass(frozen=True, slots=True)
class BenchmarkIndex:
    """Texts of benchmarks, ready to be asked. Made by ``build_index``."""

    sizes: Mapping[str, int]
    _by_key: Mapping[str, tuple[str, int]] = field(repr=False)
    _by_gram: Mapping[int, Sequence[tuple[str, int]]] = field(repr=False)

    def find(self, problem: Problem) -> Match | None:
        """The best match of a problem, or None."""
        exact = self._by_key.get(key_of(problem.text))
        if exact is not None:
            return Match(problem.id, *exact, "exact", 1.0)
        grams = shingles(problem.text, NGRAM)
        if len(grams) < MIN_WORDS - NGRAM + 1:
            return None
        shared = Counter(place for gram in grams for place in self._by_gram.get(gram, ()))
        if not shared:
            return None
        place, count = min(shared.items(), key=lambda found: (-found[1], found[0]))
        overlap = count / len(grams)
        return Match(problem.id, *place, "near", overlap) if overlap >= MIN_OVERLAP else None


def build_index(benchmarks: Mapping[str, Iterable[str]]) -> BenchmarkIndex:
    """Index the problem texts of benchmarks by name."""
    sizes: dict[str, int] = {}
    by_key: dict[str, tuple[str, int]] = {}
    by_gram: dict[int, list[tuple[str, int]]] = {}
    for name, texts in benchmarks.items():
        sizes[name] = 0
        for number, text in enumerate(dict.fromkeys(texts)):
            sizes[name] += 1
            by_key.setdefault(key_of(text), (name, number))
            for gram in shingles(text, NGRAM):
                by_gram.setdefault(gram, []).append((name, number))
    return BenchmarkIndex(sizes, by_key, by_gram)


def benchmarks_in(folder: Path) -> dict[str, list[str]]:
    """Problem texts of the default benchmarks whose files are in a data folder, by name."""
    found: dict[str, list[str]] = {}
    for name, files in DEFAULT_FILES.items():
        paths = [folder / file for file in files]
        if all(path.is_file() for path in paths):
            texts = (
                row.get("problem", row.get("question")) for path in paths for _, row in read_records(path)
            )
            found[name] = [text for text in texts if isinstance(text, str)]
    return found


def benchmark_file(path: Path) -> list[str]:
    """Problem texts of any file that ``read_problems`` reads."""
    return [problem.text for problem in read_problems(path, duplicates="skip")]


@dataclass(frozen=True, slots=True)
class ContaminationReport:
    """What a check found.

    Attributes:
        checked: Problems that were looked at.
        benchmarks: Size of each benchmark they were compared with.
        matches: Every match.
    """

    checked: int
    benchmarks: Mapping[str, int]
    matches: Sequence[Match]

    def note(self) -> dict[str, Any]:
        """What the manifest holds: counts by benchmark and kind, the settings, and matches by name."""
        counts = Counter((m.benchmark, m.kind) for m in self.matches)
        return {
            "checked": self.checked,
            "benchmarks": dict(self.benchmarks),
            "ngram": NGRAM,
            "min_overlap": MIN_OVERLAP,
            "exact": {name: n for (name, kind), n in sorted(counts.items()) if kind == "exact"},
            "near": {name: n for (name, kind), n in sorted(counts.items()) if kind == "near"},
            "matches": [
                [m.problem_id, m.benchmark, m.number, m.kind, round(m.overlap, 3)]
                for m in self.matches[:MAX_LISTED]
            ],
        }


def check_problems(problems: Iterable[Problem], index: BenchmarkIndex) -> ContaminationReport:
    """Compare problems with benchmarks; a problem id that comes again is looked at once."""
    seen: set[str] = set()
    matches: list[Match] = []
    for problem in problems:
        if problem.id not in seen:
            seen.add(problem.id)
            match = index.find(problem)
            if match is not None:
                matches.append(match)
    return ContaminationReport(len(seen), index.sizes, matches)
