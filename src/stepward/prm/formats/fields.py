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
    Estimate,
    FinishReason,
    LabeledSolution,
    LabelerInfo,
    Phase,
    PolicyInfo,
    Step,
    StepLabel,
)

NOBODY = PolicyInfo("unknown", "", "elsewhere")
"""Who sampled, where a foreign row does not say."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field that a format may hold or not: whether a row says something there, and the row without it."""

    says: Callable[[LabeledSolution], bool]
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


def _in_step(see: Callable[[Step], Any]) -> Callable[[LabeledSolution], bool]:
    return lambda row: any(see(step) for step in row.solution.steps)


def _in_label(see: Callable[[StepLabel], Any]) -> Callable[[LabeledSolution], bool]:
    return lambda row: any(see(label) for label in row.labels)


def _in_prefix(see: Callable[[Estimate], Any]) -> Callable[[LabeledSolution], bool]:
    return lambda row: any(see(estimate) for estimate in row.prefixes)


_NO_CHECK, _NO_COUNTS, _NO_LABELER = Check(), Counts(), LabelerInfo("", "", "")

FIELDS: dict[str, Field] = {
    "problem_id": Field(lambda r: bool(r.problem.id), _no_ids),
    "messages": Field(lambda r: not isinstance(r.problem.statement, str), _plain),
    "answers": Field(lambda r: bool(r.problem.answers), _problem(answers=())),
    "check": Field(lambda r: r.problem.check != _NO_CHECK, _problem(check=_NO_CHECK)),
    "source": Field(lambda r: bool(r.problem.source), _problem(source="")),
    "licence": Field(lambda r: bool(r.problem.licence), _problem(licence="")),
    "solution_id": Field(lambda r: bool(r.solution.id), _solution(id="")),
    "solution_seed": Field(lambda r: bool(r.solution.seed), _solution(seed=0)),
    "ids_from": Field(lambda r: r.solution.ids_from != "encoded", _solution(ids_from="encoded")),
    "outcome": Field(lambda r: r.solution.outcome is not None, _solution(outcome=None)),
    "outcome_from": Field(
        lambda r: r.solution.outcome_from != "answers" or r.solution.outcome_share is not None,
        _solution(outcome_from="answers", outcome_share=None),
    ),
    "final_answer": Field(lambda r: r.solution.final_answer is not None, _solution(final_answer=None)),
    "finish_reason": Field(
        lambda r: r.solution.finish_reason is not FinishReason.STOP,
        _solution(finish_reason=FinishReason.STOP),
    ),
    "token_ids": Field(_in_step(lambda s: s.token_ids), _steps(token_ids=())),
    "token_logprobs": Field(_in_step(lambda s: s.token_logprobs), _steps(token_logprobs=())),
    "phase": Field(_in_step(lambda s: s.phase is not Phase.ANSWER), _steps(phase=Phase.ANSWER)),
    "label": Field(_in_label(lambda s: s.label is not None), _unlabelled),
    "decided_by": Field(_in_label(lambda s: s.decided_by), _labels(decided_by="")),
    "p_first_error": Field(_in_label(lambda s: s.p_first_error is not None), _labels(p_first_error=None)),
    "verdicts": Field(_in_label(lambda s: s.verdicts), _labels(verdicts=())),
    "hint": Field(_in_label(lambda s: s.hint is not None), _labels(hint=None)),
    "rationale": Field(_in_label(lambda s: s.rationale is not None), _labels(rationale=None)),
    "counts": Field(_in_prefix(lambda e: e.counts != _NO_COUNTS), _prefixes(counts=_NO_COUNTS)),
    "value": Field(_in_prefix(lambda e: e.value is not None), _prefixes(value=None)),
    "interval": Field(_in_prefix(lambda e: (e.low, e.high) != (None, None)), _prefixes(low=None, high=None)),
    "policy": Field(lambda r: r.policy != NOBODY, _row(policy=NOBODY)),
    "completer": Field(lambda r: r.completer != NOBODY, _row(completer=NOBODY)),
    "tokenizer_hash": Field(lambda r: bool(r.tokenizer_hash), _row(tokenizer_hash="")),
    "seed": Field(lambda r: bool(r.seed), _row(seed=0)),
    "allocation": Field(
        lambda r: r.allocation is not Allocation.FIXED_K, _row(allocation=Allocation.FIXED_K)
    ),
    "tokens": Field(
        lambda r: bool(r.prompt_tokens or r.generated_tokens), _row(prompt_tokens=0, generated_tokens=0)
    ),
    "marks": Field(lambda r: bool(r.marks), _row(marks=())),
    "labeler": Field(lambda r: r.labeler != _NO_LABELER, _row(labeler=_NO_LABELER)),
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
    return [name for name, field in FIELDS.items() if name not in held and field.says(row)]
