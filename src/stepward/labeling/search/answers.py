"""From the solutions that a search found to its answer: weighted votes over equal answers.

An unfinished solution is no answer and never votes. An ended one votes with the aggregate of its step scores, or of its
longest scored beginning where the budget held no more; a search without any score votes evenly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepward.labeling.search.exploration import UNSCORED, Exploration
from stepward.prm.types import CheckKind, FinishReason, VerdictKind
from stepward.verifiers.answer import equivalent
from stepward.verifiers.extraction import extract_answer

Aggregate = Callable[[Sequence[float]], float]
"""Step scores -> one score; not empty."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A solution that a search found.

    Attributes:
        text: The solution.
        steps: Its steps.
        complete: It has ended; others have no vote.
        step_scores: P(step is right) of its steps, or of the first ones where the budget held no more.
        score: Their aggregate, None where nothing of it was scored.
        answer: Its final answer, or None.
        num_votes: How often the search ended in it.
        num_tokens: Its tokens.
    """

    text: str
    steps: tuple[str, ...]
    complete: bool
    step_scores: tuple[float, ...]
    score: float | None
    answer: str | None
    num_votes: int
    num_tokens: int


def candidates_of(x: Exploration, aggregate: Aggregate) -> tuple[Candidate, ...]:
    """What the exploration has found, then where it stood unfinished; each solution once."""
    ended = dict.fromkeys(x.found)
    unfinished = [n for n in dict.fromkeys(x.frontier) if n and not x.tree.terminal[n]]
    return tuple(
        _candidate(x, node, aggregate, max(1, x.found.count(node))) for node in (*ended, *unfinished)
    )


def _candidate(x: Exploration, node: int, aggregate: Aggregate, votes: int) -> Candidate:
    scores = x.known_scores(node)
    text = x.text(node)
    complete = bool(x.tree.terminal[node])
    kind = x.problem.check.kind
    found = (
        extract_answer(text, finish_reason=FinishReason.STOP, kind=kind).answer
        if complete and kind is not CheckKind.UNIT_TESTS
        else None
    )
    return Candidate(
        text=text,
        steps=tuple(x.step_texts(node)),
        complete=complete,
        step_scores=scores,
        score=aggregate(scores) if scores else None,
        answer=found.text if found else None,
        num_votes=votes,
        num_tokens=x.length(node),
    )


def best_of(candidates: Sequence[Candidate]) -> int | None:
    """Index of the ended candidate with an answer and the highest score, ties to the first; None without one."""
    able = [i for i, c in enumerate(candidates) if c.complete and c.answer is not None]
    return max(able, key=lambda i: (_weight(candidates[i], None), -i), default=None)


def vote(candidates: Sequence[Candidate]) -> int | None:
    """Index of the best candidate of the answer that has the greatest sum of scores; None without an answer.

    Ties go to the answer that was found first. Equal answers are those that the verifier calls equivalent.
    """
    able = [i for i, c in enumerate(candidates) if c.complete and c.answer is not None]
    even = None if any(candidates[i].score is not None for i in able) else 1.0
    groups: list[list[int]] = []
    for i in able:
        answer = candidates[i].answer or ""
        home = next((g for g in groups if same_answer(candidates[g[0]].answer or "", answer)), None)
        if home is None:
            groups.append([i])
        else:
            home.append(i)
    if not groups:
        return None
    sums = [sum(_weight(candidates[i], even) * candidates[i].num_votes for i in g) for g in groups]
    # Sums of the same scores in another order differ in the last bits: that is a tie.
    chosen = next(g for g, total in zip(groups, sums, strict=True) if total >= max(sums) - 1e-12)
    return max(chosen, key=lambda i: (_weight(candidates[i], even), -i))


def same_answer(a: str, b: str) -> bool:
    """Whether two final answers are the same."""
    return a.strip() == b.strip() or equivalent(gold=a, answer=b).kind is VerdictKind.SUPPORTED


def _weight(candidate: Candidate, even: float | None) -> float:
    if even is not None:
        return even
    return candidate.score if candidate.score is not None else UNSCORED
