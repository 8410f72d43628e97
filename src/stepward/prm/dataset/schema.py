"""The two tables of a dataset: explicit Arrow schemas, and records to rows and back without loss.

The schema is always declared, never inferred: a shard whose every rationale is null has the same types as any
other. The version stands in the Arrow metadata; a reader of version n reads n-1 (``conform``).
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

from collections.abc import Iterable, Mapping
from typing import Any, cast

import pyarrow as pa

from stepward.prm.dataset.columns import ROLLOUTS_SCHEMA, SCHEMA_VERSION, SOLUTIONS_SCHEMA
from stepward.prm.dataset.contract import check_rollouts, check_solutions, conform
from stepward.prm.types import (
    Allocation,
    Check,
    CheckKind,
    Counts,
    Estimate,
    FinishReason,
    LabeledSolution,
    LabelerInfo,
    Message,
    Outcome,
    Phase,
    PolicyInfo,
    Problem,
    Reason,
    Rollout,
    Sampler,
    Solution,
    Step,
    StepLabel,
    Verdict,
    VerdictKind,
)

__all__ = [
    "ROLLOUTS_SCHEMA",
    "SCHEMA_VERSION",
    "SOLUTIONS_SCHEMA",
    "check_rollouts",
    "check_solutions",
    "conform",
    "rollout_of",
    "rollout_row",
    "rollouts_table",
    "rows_of",
    "solution_of",
    "solution_row",
    "solutions_table",
]

Row = dict[str, Any]


# --- records to rows ---------------------------------------------------------------------------------------


def _policy_row(policy: PolicyInfo) -> Row:
    s = policy.sampler
    sampler = {
        "temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k,
        "min_p": s.min_p, "max_tokens": s.max_tokens, "stop": s.stop,
    }  # fmt: skip
    return {
        "name": policy.name, "revision": policy.revision, "engine": policy.engine,
        "sampler": sampler, "prompt_hash": policy.prompt_hash,
    }  # fmt: skip


def _prefix_row(estimate: Estimate) -> Row:
    c = estimate.counts
    return {
        "num_right": c.right, "num_wrong": c.wrong, "num_truncated": c.truncated, "num_no_answer": c.no_answer,
        "num_no_gold": c.no_gold, "num_undecided": c.undecided, "num_timeout": c.timeout, "num_error": c.error,
        "n_unique": c.n_unique, "value": estimate.value, "value_low": estimate.low, "value_high": estimate.high,
    }  # fmt: skip


def _verdict_row(verdict: Verdict) -> Row:
    span = verdict.span
    return {
        "verifier": verdict.verifier, "version": verdict.version, "verdict": verdict.kind,
        "reason": verdict.reason, "span": None if span is None else {"start": span[0], "end": span[1]},
        "evidence": verdict.evidence,
    }  # fmt: skip


def _step_row(step: Step, label: StepLabel) -> Row:
    return {
        "text": step.text, "token_ids": step.token_ids, "token_logprobs": step.token_logprobs,
        "phase": step.phase, "p_first_error": label.p_first_error, "label": label.label,
        "decided_by": label.decided_by, "verdicts": [_verdict_row(v) for v in label.verdicts],
        "rationale": label.rationale, "hint": label.hint,
    }  # fmt: skip


def solution_row(record: LabeledSolution) -> Row:
    """A labelled solution as a row of the solutions table; ``Verdict.seconds`` alone is left out."""
    problem, solution = record.problem, record.solution
    plain = isinstance(problem.statement, str)
    return {
        "problem_id": problem.id,
        "problem": problem.text,
        "messages": None
        if plain
        else [{"role": m.role, "content": m.content} for m in cast(tuple[Message, ...], problem.statement)],
        "answers": problem.answers,
        "check": {
            "kind": problem.check.kind,
            "tolerance": problem.check.tolerance,
            "payload": problem.check.payload,
        },
        "source": problem.source,
        "licence": problem.licence,
        "solution_id": solution.id,
        "solution_seed": solution.seed,
        "finish_reason": solution.finish_reason,
        "ids_from": solution.ids_from,
        "policy": _policy_row(record.policy),
        "completer": _policy_row(record.completer),
        "tokenizer_hash": record.tokenizer_hash,
        "seed": record.seed,
        "allocation": record.allocation,
        "prefixes": [_prefix_row(e) for e in record.prefixes],
        "steps": [_step_row(s, label) for s, label in zip(solution.steps, record.labels, strict=True)],
        "final_answer": solution.final_answer,
        "outcome": solution.outcome,
        "outcome_from": solution.outcome_from,
        "outcome_share": solution.outcome_share,
        "first_error": record.first_error,
        "tokens": {"prompt": record.prompt_tokens, "generated": record.generated_tokens},
        "labeler": {
            "name": record.labeler.name,
            "version": record.labeler.version,
            "config_hash": record.labeler.config_hash,
        },
        "marks": record.marks,
    }


def rollout_row(solution_id: str, rollout: Rollout) -> Row:
    """A rollout as a row of the rollouts table."""
    r = rollout
    return {
        "solution_id": solution_id, "problem_id": r.problem_id, "num_steps": r.num_steps, "index": r.index,
        "seed": r.seed, "token_ids": r.token_ids, "text": r.text, "finish_reason": r.finish_reason,
        "logprobs": r.logprobs, "outcome": r.outcome, "answer": r.answer, "error": r.error,
    }  # fmt: skip


def solutions_table(records: Iterable[LabeledSolution]) -> pa.Table:
    """Labelled solutions as a table of ``SOLUTIONS_SCHEMA``, in order.

    Raises:
        FormatError: A row breaks the contract; the message names the solution.
    """
    table = pa.Table.from_pylist([solution_row(r) for r in records], schema=SOLUTIONS_SCHEMA)
    check_solutions(table)
    return table


def rollouts_table(rollouts: Iterable[tuple[str, Rollout]]) -> pa.Table:
    """(solution id, rollout) pairs as a table of ``ROLLOUTS_SCHEMA``, in order."""
    table = pa.Table.from_pylist([rollout_row(i, r) for i, r in rollouts], schema=ROLLOUTS_SCHEMA)
    check_rollouts(table)
    return table


# --- rows to records ---------------------------------------------------------------------------------------


def _policy_of(row: Row) -> PolicyInfo:
    s = row["sampler"]
    sampler = Sampler(s["temperature"], s["top_p"], s["top_k"], s["min_p"], s["max_tokens"], tuple(s["stop"]))
    return PolicyInfo(row["name"], row["revision"], row["engine"], sampler, row["prompt_hash"])


def estimate_of(row: Row) -> Estimate:
    counts = Counts(
        row["num_right"], row["num_wrong"], row["num_truncated"], row["num_no_answer"], row["num_no_gold"],
        row["num_undecided"], row["num_timeout"], row["num_error"], row["n_unique"],
    )  # fmt: skip
    return Estimate(counts, row["value"], row["value_low"], row["value_high"])


def verdict_of(row: Row) -> Verdict:
    span = row["span"]
    return Verdict(
        VerdictKind(row["verdict"]),
        row["verifier"],
        row["version"],
        Reason(row["reason"]),
        row["evidence"],
        None if span is None else (span["start"], span["end"]),
    )


def _label_of(row: Row) -> StepLabel:
    verdicts = tuple(verdict_of(v) for v in row["verdicts"])
    return StepLabel(
        row["label"], row["p_first_error"], row["decided_by"], verdicts, row["rationale"], row["hint"]
    )


def _step_of(row: Row) -> Step:
    return Step(row["text"], tuple(row["token_ids"]), Phase(row["phase"]), tuple(row["token_logprobs"]))


def _outcome_of(name: str | None) -> Outcome | None:
    return None if name is None else Outcome(name)


def solution_of(row: Mapping[str, Any]) -> LabeledSolution:
    """The record of a row of the solutions table: the inverse of ``solution_row``."""
    turns = row["messages"]
    problem = Problem(
        id=row["problem_id"],
        statement=row["problem"] if turns is None else tuple(Message(m["role"], m["content"]) for m in turns),
        answers=tuple(row["answers"]),
        check=Check(CheckKind(row["check"]["kind"]), row["check"]["tolerance"], row["check"]["payload"]),
        source=row["source"],
        licence=row["licence"],
    )
    solution = Solution(
        id=row["solution_id"],
        problem_id=row["problem_id"],
        steps=tuple(_step_of(s) for s in row["steps"]),
        seed=row["solution_seed"],
        outcome=_outcome_of(row["outcome"]),
        final_answer=row["final_answer"],
        finish_reason=FinishReason(row["finish_reason"]),
        ids_from=row["ids_from"],
        outcome_from=row["outcome_from"],
        outcome_share=row["outcome_share"],
    )
    return LabeledSolution(
        problem=problem,
        solution=solution,
        prefixes=tuple(estimate_of(p) for p in row["prefixes"]),
        labels=tuple(_label_of(s) for s in row["steps"]),
        first_error=row["first_error"],
        policy=_policy_of(row["policy"]),
        completer=_policy_of(row["completer"]),
        tokenizer_hash=row["tokenizer_hash"],
        seed=row["seed"],
        allocation=Allocation(row["allocation"]),
        prompt_tokens=row["tokens"]["prompt"],
        generated_tokens=row["tokens"]["generated"],
        labeler=LabelerInfo(**row["labeler"]),
        marks=tuple(row["marks"]),
    )


def rollout_of(row: Mapping[str, Any]) -> tuple[str, Rollout]:
    """(solution id, rollout) of a row of the rollouts table: the inverse of ``rollout_row``."""
    logprobs = row["logprobs"]
    rollout = Rollout(
        problem_id=row["problem_id"],
        num_steps=row["num_steps"],
        index=row["index"],
        seed=row["seed"],
        token_ids=tuple(row["token_ids"]),
        text=row["text"],
        finish_reason=FinishReason(row["finish_reason"]),
        logprobs=None if logprobs is None else tuple(logprobs),
        outcome=_outcome_of(row["outcome"]),
        answer=row["answer"],
        error=row["error"],
    )
    return row["solution_id"], rollout


def rows_of(data: pa.Table | pa.RecordBatch) -> list[Row]:
    """Rows as dicts, what ``solution_of`` and ``rollout_of`` take."""
    return data.to_pylist()
