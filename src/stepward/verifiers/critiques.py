"""A judge's prompts and what its reviews say: from text to votes on steps."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from stepward.prm.seeds import derive_seed
from stepward.prm.types import VerdictKind

STAGES = ("verify", "critique", "merge")

_PLACE = re.compile(r"\{(problem|steps|num_steps|mark|review|remarks)\}")
_CRITIQUE_CHARS = 600


def prompt_source(stage: str) -> str:
    """The prompt file of a stage."""
    return (files("stepward.verifiers") / "prompts" / f"judge_{stage}.txt").read_text(encoding="utf-8")


def prompts_hash(sources: Mapping[str, str]) -> str:
    """First 8 hex digits of SHA-256 over the prompts: part of the judge's version."""
    text = "\x00".join(f"{stage}\x00{sources[stage]}" for stage in sorted(sources))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def mark_of(seed: int, problem_id: str, steps: Sequence[str]) -> str:
    """Four hex digits that the author of a step cannot know, so that no step can write a verdict line."""
    return f"{derive_seed(seed, 'mark', problem_id, *steps) & 0xFFFF:04x}"


def rendered(source: str, problem: str, steps: Sequence[str], mark: str, **texts: str) -> str:
    """A prompt with its places filled in, in one pass: braces inside the texts mean nothing."""
    shown = "\n\n".join(f"<step {i} {mark}>\n{text}\n</step {i} {mark}>" for i, text in enumerate(steps))
    values = {"problem": problem, "steps": shown, "num_steps": str(len(steps)), "mark": mark, **texts}
    return _PLACE.sub(lambda place: values[place[1]], source)


@dataclass(frozen=True, slots=True)
class Review:
    """What one review says.

    Attributes:
        votes: For each step True (correct), False (incorrect) or None (nothing, or both).
        critiques: For each step the words before its verdict.
    """

    votes: tuple[bool | None, ...]
    critiques: tuple[str, ...]


def read_review(text: str, num_steps: int, mark: str) -> Review:
    """Read the verdict lines of a review. What is not in the asked form is no vote."""
    line = re.compile(
        rf"^[ \t>*_#`-]{{0,8}}step[ \t]+(\d{{1,4}})[ \t]*\({mark}\)[ \t]*:[ \t*_`]{{0,4}}(correct|incorrect)\b",
        re.IGNORECASE | re.MULTILINE,
    )
    votes: list[set[bool]] = [set() for _ in range(num_steps)]
    critiques = [""] * num_steps
    end = 0
    for found in line.finditer(text):
        index = int(found[1])
        if index < num_steps:
            votes[index].add(found[2].lower() == "correct")
            critiques[index] = text[end : found.start()].strip()[-_CRITIQUE_CHARS:]
        end = found.end()
    return Review(tuple(next(iter(v)) if len(v) == 1 else None for v in votes), tuple(critiques))


@dataclass(frozen=True, slots=True)
class StepVotes:
    """The votes of k reviews on one step; those that say nothing count against either side.

    Attributes:
        correct: Reviews that call it correct.
        incorrect: Reviews that call it incorrect.
        silent: Reviews that were made and do not say.
        critique: Words of the first review of the majority.
    """

    correct: int
    incorrect: int
    silent: int
    critique: str = ""

    @property
    def kind(self) -> VerdictKind:
        """What the larger side says; unknown for a tie."""
        if self.correct == self.incorrect:
            return VerdictKind.UNKNOWN
        return VerdictKind.SUPPORTED if self.correct > self.incorrect else VerdictKind.REFUTED

    @property
    def confidence(self) -> float:
        """Share of the larger side among all reviews, in [0, 1]; 0 without reviews."""
        total = self.correct + self.incorrect + self.silent
        return max(self.correct, self.incorrect) / total if total else 0.0


def count_votes(reviews: Sequence[Review], num_steps: int) -> tuple[StepVotes, ...]:
    """Step consistency (SPARK): each step's votes are counted for themselves, over all reviews."""
    counted: list[StepVotes] = []
    for step in range(num_steps):
        said = [review.votes[step] for review in reviews]
        correct, incorrect = said.count(True), said.count(False)
        larger = correct > incorrect
        words = next((r.critiques[step] for r in reviews if r.votes[step] is larger), "")
        counted.append(StepVotes(correct, incorrect, said.count(None), words))
    return tuple(counted)
