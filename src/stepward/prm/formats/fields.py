"""Which fields of the contract a foreign format can hold, and what a row loses where it cannot.

Every format states the names it holds; ``only`` keeps these and puts the others to their defaults, ``lost`` names
those that were not at their default. A round trip through a format is right where ``only`` of both rows is equal.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from stepward.prm.types import (
    Allocation,
    Check,
    Counts,
    FinishReason,
    LabeledSolution,
    LabelerInfo,
    Phase,
    PolicyInfo,
)

NOBODY = PolicyInfo("unknown", "", "elsewhere")
"""Who sampled, where a foreign row does not say."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field that a format may hold or not: how to look at it and how to put it to its default."""

    see: Callable[[LabeledSolution], Any]
    clear: Callable[[LabeledSolution], LabeledSolution]


def _problem(**changes: Any) -> Callable[[LabeledSolution], LabeledSolution]:
    return lambda row: replace(row, problem=replace(row.problem, **changes))


def _solution(**changes: Any) -> Callable[[LabeledSolution], LabeledSolution]:
    return lambda row: replace(row, solution=replace(row.solution, **changes))


def _steps(**changes: Any) -> Callable[[LabeledSolution], LabeledSolution]:
    def clear(row: LabeledSolution) -> LabeledSolution:
        steps = tuple(replace(s, **changes) for s in row.solution.steps)
        return replace(row, solution=replace(row.solution, steps=steps))

    return clear


def _labels(**changes: Any) -> Callable[[LabeledSolution], LabeledSolution]:
    return lambda row: replace(row, labels=tuple(replace(label, **changes) for label in row.labels))


def _prefixes(**changes: Any) -> Callable[[LabeledSolution], LabeledSolution]:
    return lambda row: replace(row, prefixes=tuple(replace(e, **changes) for e in row.prefixes))


def _row(**changes: Any) -> Callable[[LabeledSolution], LabeledSolution]:
    return lambda row: replace(row, **changes)


def _plain(row: LabeledSolution) -> LabeledSolution:
    return replace(row, problem=replace(row.problem, statement=row.problem.text))


def _no_ids(row: LabeledSolution) -> LabeledSolution:
    problem = replace(row.problem, id="")
    return replace(row, problem=problem, solution=replace(row.solution, problem_id=""))


def _unlabelled(row: LabeledSolution) -> LabeledSolution:
    return replace(row, labels=tuple(replace(label, label=None) for label in row.labels), first_error=None)


FIELDS: dict[str, Field] = {
    "problem_id": Field(lambda r: r.problem.id, _no_ids),
    "messages": Field(lambda r: r.problem.statement, _plain),
    "answers": Field(lambda r: r.problem.answers, _problem(answers=())),
    "check": Field(lambda r: r.problem.check, _problem(check=Check())),
    "source": Field(lambda r: r.problem.source, _problem(source="")),
    "licence": Field(lambda r: r.problem.licence, _problem(licence="")),
    "solution_id": Field(lambda r: r.solution.id, _solution(id="")),
    "solution_seed": Field(lambda r: r.solution.seed, _solution(seed=0)),
    "ids_from": Field(lambda r: r.solution.ids_from, _solution(ids_from="encoded")),
    "outcome": Field(lambda r: r.solution.outcome, _solution(outcome=None)),
    "final_answer": Field(lambda r: r.solution.final_answer, _solution(final_answer=None)),
    "finish_reason": Field(lambda r: r.solution.finish_reason, _solution(finish_reason=FinishReason.STOP)),
    "token_ids": Field(lambda r: [s.token_ids for s in r.solution.steps], _steps(token_ids=())),
    "token_logprobs": Field(
        lambda r: [s.token_logprobs for s in r.solution.steps], _steps(token_logprobs=())
    ),
    "phase": Field(lambda r: [s.phase for s in r.solution.steps], _steps(phase=Phase.ANSWER)),
    "label": Field(lambda r: ([s.label for s in r.labels], r.first_error), _unlabelled),
    "decided_by": Field(lambda r: [s.decided_by for s in r.labels], _labels(decided_by="")),
    "p_first_error": Field(lambda r: [s.p_first_error for s in r.labels], _labels(p_first_error=None)),
    "verdicts": Field(lambda r: [s.verdicts for s in r.labels], _labels(verdicts=())),
    "rationale": Field(lambda r: [s.rationale for s in r.labels], _labels(rationale=None)),
    "counts": Field(lambda r: [e.counts for e in r.prefixes], _prefixes(counts=Counts())),
    "value": Field(lambda r: [e.value for e in r.prefixes], _prefixes(value=None)),
    "interval": Field(lambda r: [(e.low, e.high) for e in r.prefixes], _prefixes(low=None, high=None)),
    "policy": Field(lambda r: r.policy, _row(policy=NOBODY)),
    "completer": Field(lambda r: r.completer, _row(completer=NOBODY)),
    "tokenizer_hash": Field(lambda r: r.tokenizer_hash, _row(tokenizer_hash="")),
    "seed": Field(lambda r: r.seed, _row(seed=0)),
    "allocation": Field(lambda r: r.allocation, _row(allocation=Allocation.FIXED_K)),
    "tokens": Field(
        lambda r: (r.prompt_tokens, r.generated_tokens), _row(prompt_tokens=0, generated_tokens=0)
    ),
    "labeler": Field(lambda r: r.labeler, _row(labeler=LabelerInfo("", "", ""))),
}
"""Fields by name. The statement as text and the step texts, apart from white space at their ends, are in every
format that can be read."""


def only(row: LabeledSolution, held: Collection[str]) -> LabeledSolution:
    """The row with every field that is not among ``held`` at its default."""
    for name, field in FIELDS.items():
        if name not in held:
            row = field.clear(row)
    return row


def lost(row: LabeledSolution, held: Collection[str]) -> list[str]:
    """Names of the fields that are not among ``held`` and say something in this row."""
    return [
        name
        for name, field in FIELDS.items()
        if name not in held and field.see(row) != field.see(field.clear(row))
    ]
