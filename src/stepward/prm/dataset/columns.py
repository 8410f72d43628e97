"""Every column of the dataset: name, type and meaning, in one place.

The Arrow schemas (``prm.dataset.schema``), the page docs/dataset.md and the dataset card are all made from these two
tuples, so that none of them can say something else than what is stored.

No column is declared non-null in Arrow: polars, duckdb and ``datasets`` lose that flag, and a table that went
through them must still be the same table. Whether a column may be null is kept here and checked on writing.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

from dataclasses import dataclass

import pyarrow as pa

from stepward.prm.types import MARKS, Allocation

SCHEMA_VERSION = 3
"""Version 1 had no ``num_no_gold`` and ``num_timeout`` at a prefix; reading it fills them with 0. Version 2 had no
``outcome_from``, ``outcome_share``, ``marks`` and ``hint``: outcomes were from answers, nothing was marked."""

VERSION_KEY = b"stepward.schema_version"
TABLE_KEY = b"stepward.table"


@dataclass(frozen=True, slots=True)
class Column:
    """One column, or one field of a nested column.

    Attributes:
        name: As stored.
        kind: Arrow type of a leaf, or the fields of a struct.
        doc: What it means, with unit and range.
        repeated: True for a list of ``kind``.
        nullable: Whether null is a value here. A list is never null where this is False, only empty.
        since: Schema version that brought the column.
        fill: Value that rows of an older version get.
    """

    name: str
    kind: "pa.DataType | tuple[Column, ...]"
    doc: str
    repeated: bool = False
    nullable: bool = False
    since: int = 1
    fill: int | str | tuple[()] | None = None


_text, _int8, _int32 = pa.string(), pa.int8(), pa.int32()
_int64, _real = pa.int64(), pa.float64()

_SAMPLER = (
    Column("temperature", _real, "Softmax temperature; 0 is greedy."),
    Column("top_p", _real, "Nucleus mass in (0, 1]."),
    Column("top_k", _int32, "Most likely tokens kept; 0 keeps all."),
    Column("min_p", _real, "Least probability relative to the most likely token."),
    Column("max_tokens", _int32, "Most tokens a rollout may have."),
    Column("stop", _text, "Stop strings.", repeated=True),
)

_POLICY = (
    Column("name", _text, "Hub id or folder name."),
    Column("revision", _text, "Commit or content hash of the weights."),
    Column(
        "engine", _text, "What sampled: vllm, vllm_server, openai, transformers, embedded, replay, scripted."
    ),
    Column("sampler", _SAMPLER, "The effective sampler."),
    Column("prompt_hash", _text, "Hash of the prompt template; the manifest holds its text."),
)

_PREFIX = (
    Column("num_right", _int32, "Rollouts whose final answer is right."),
    Column("num_wrong", _int32, "Rollouts whose final answer is wrong."),
    Column(
        "num_truncated", _int32, "Rollouts cut by the token limit: the policy's doing, not a wrong answer."
    ),
    Column("num_no_answer", _int32, "Rollouts that ended without a final answer: the policy's doing."),
    Column("num_no_gold", _int32, "Rollouts of a problem without a gold answer.", since=2, fill=0),
    Column("num_undecided", _int32, "Rollouts whose answer the checker could not decide."),
    Column("num_timeout", _int32, "Rollouts whose check ran out of time.", since=2, fill=0),
    Column("num_error", _int32, "Rollouts lost to a fault of ours."),
    Column("n_unique", _int32, "Distinct texts among the rollouts."),
    Column(
        "value", _real, "P(right final answer | prefix), posterior mean; null = nothing known.", nullable=True
    ),
    Column("value_low", _real, "5 % quantile of the posterior (90 % interval, equal tails).", nullable=True),
    Column("value_high", _real, "95 % quantile of the posterior.", nullable=True),
)

_SPAN = (
    Column("start", _int32, "First character of the claim in the step's text, from 0."),
    Column("end", _int32, "One past its last character."),
)

_VERDICT = (
    Column("verifier", _text, "Name of the verifier."),
    Column("version", _text, "Its version: a change of behaviour changes it."),
    Column("verdict", _text, "supported, refuted or unknown."),
    Column(
        "reason", _text, "Why unknown: timeout, parse, unsupported, crash, ambiguous, no_claim; else empty."
    ),
    Column("span", _SPAN, "Where the claim stands; null = the whole step.", nullable=True),
    Column("evidence", _text, "The claim and what it was checked against, for a person."),
)

_STEP = (
    Column("text", _text, "The step without its separator."),
    Column(
        "token_ids", _int32, "Its token ids, separator included; empty = no tokenizer saw it.", repeated=True
    ),
    Column(
        "token_logprobs", _real, "Natural log, rounded to 4 decimals; empty = not asked for.", repeated=True
    ),
    Column("phase", _text, "think or answer."),
    Column("p_first_error", _real, "P(this step is the first wrong one); null = not known.", nullable=True),
    Column("label", _int8, "1 right, 0 wrong, null unknown.", nullable=True),
    Column("decided_by", _text, "What decided the label: returns, the name of a verifier, consensus, ..."),
    Column("verdicts", _VERDICT, "Tool verdicts on the step's claims.", repeated=True),
    Column("rationale", _text, "A critique in words, where one was made.", nullable=True),
    Column(
        "hint",
        _real,
        "A reward model's P(this step is right) that was read as evidence; null = none.",
        nullable=True,
        since=3,
    ),
)

SOLUTIONS = (
    Column("problem_id", _text, "Hash of source and statement, or the source's own id."),
    Column("problem", _text, "The statement as one text."),
    Column(
        "messages",
        (Column("role", _text, "Who speaks."), Column("content", _text, "What is said.")),
        "The turns, where the problem is a conversation; null = plain text.",
        repeated=True,
        nullable=True,
    ),
    Column("answers", _text, "Acceptable final answers; empty = no gold.", repeated=True),
    Column(
        "check",
        (
            Column("kind", _text, "math, text, choice or unit_tests."),
            Column("tolerance", _real, "Relative tolerance for numbers; null = exact.", nullable=True),
            Column("payload", _text, "Unit tests as source text, choices as JSON.", nullable=True),
        ),
        "How the final answer is compared with the answers.",
    ),
    Column("source", _text, "Where the problem comes from."),
    Column("licence", _text, "SPDX id or a short text; empty = unknown."),
    Column("solution_id", _text, "{problem_id}-{index}; joins the rollouts table."),
    Column("solution_seed", _int64, "Seed that drew the solution; 0 = brought from elsewhere."),
    Column("finish_reason", _text, "stop, length or abort."),
    Column(
        "ids_from",
        _text,
        "sampled, encoded where the text came from elsewhere, or searched where a tree search found it.",
    ),
    Column("policy", _POLICY, "Who sampled the solution."),
    Column("completer", _POLICY, "Who sampled the rollouts."),
    Column("tokenizer_hash", _text, "Hash of the tokenizer whose ids the row holds."),
    Column("seed", _int64, "The run seed."),
    Column(
        "allocation", _text,
        "How rollouts were spread: " + ", ".join(Allocation) + ". A label rule is valid for some of them only.",
    ),
    Column("prefixes", _PREFIX, "T+1 estimates: prefix t is the problem and its first t steps.", repeated=True),
    Column("steps", _STEP, "The T steps, in order.", repeated=True),
    Column("final_answer", _text, "The solution's answer as extracted; null = none.", nullable=True),
    Column(
        "outcome", _text,
        "right, wrong, truncated, no_answer, no_gold, undecided, timeout, error; null = not graded.",
        nullable=True,
    ),
    Column(
        "outcome_from", _text,
        "What outcomes of the solution and its rollouts rest on: answers (the reference), votes (the majority of the "
        "problem's solutions), spark (a judge's consensus).",
        since=3, fill="answers",
    ),
    Column(
        "outcome_share", _real,
        "Soft outcome where there is no reference: share of the votes or reviews; null = there is one.",
        nullable=True, since=3,
    ),
    Column(
        "first_error", _int32,
        "Index from 0 of the first wrong step by the label rule; null = none, or not known where labels are "
        "null too.",
        nullable=True,
    ),
    Column(
        "tokens",
        (
            Column("prompt", _int64, "Tokens of the prompt."),
            Column("generated", _int64, "Tokens sampled for this row: the solution and all its rollouts."),
        ),
        "What the row cost.",
    ),
    Column(
        "labeler",
        (
            Column("name", _text, "Name of the label rule."),
            Column("version", _text, "Its version."),
            Column("config_hash", _text, "Hash of its settings."),
        ),
        "Which labelling made the row.",
    ),
    Column(
        "marks", _text, "What to know before using the row: " + ", ".join(MARKS) + ".",
        repeated=True, since=3, fill=(),
    ),
)  # fmt: skip

ROLLOUTS = (
    Column("solution_id", _text, "The solution whose prefix was continued."),
    Column("problem_id", _text, "The problem."),
    Column("num_steps", _int32, "t: the rollout continues prefix t of that solution."),
    Column("index", _int32, "Which draw at that prefix, from 0, in request order."),
    Column("seed", _int64, "The 63-bit seed of this draw alone."),
    Column("token_ids", _int32, "What was sampled, the end token included.", repeated=True),
    Column("text", _text, "The decoded continuation, without end token."),
    Column("finish_reason", _text, "stop, length or abort."),
    Column("logprobs", _real, "Natural log of each id's probability; null = not asked for.", repeated=True,
           nullable=True),
    Column("outcome", _text, "As in the solutions table; null = not graded.", nullable=True),
    Column("answer", _text, "The extracted final answer; null = none.", nullable=True),
    Column("error", _text, "The engine's message where the outcome is error.", nullable=True),
)  # fmt: skip


def arrow_field(column: Column) -> pa.Field:
    """The Arrow field of a column, nested fields included."""
    kind = column.kind
    kind = pa.struct([arrow_field(c) for c in kind]) if isinstance(kind, tuple) else kind
    return pa.field(column.name, pa.list_(kind) if column.repeated else kind)


def _schema(name: str, columns: tuple[Column, ...]) -> pa.Schema:
    metadata = {TABLE_KEY: name.encode(), VERSION_KEY: str(SCHEMA_VERSION).encode()}
    return pa.schema([arrow_field(c) for c in columns], metadata=metadata)


SOLUTIONS_SCHEMA = _schema("solutions", SOLUTIONS)
ROLLOUTS_SCHEMA = _schema("rollouts", ROLLOUTS)


def describe(columns: tuple[Column, ...]) -> str:
    """The columns as a Markdown table, nested fields written as ``steps[].label``."""
    lines = ["| column | type | meaning |", "| --- | --- | --- |"]

    def add(column: Column, path: str) -> None:
        name = f"{path}{column.name}" + ("[]" if column.repeated else "")
        kind = "struct" if isinstance(column.kind, tuple) else str(column.kind)
        kind = f"list of {kind}" if column.repeated else kind
        lines.append(f"| `{name}` | {kind}{', null allowed' if column.nullable else ''} | {column.doc} |")
        if isinstance(column.kind, tuple):
            for child in column.kind:
                add(child, f"{name}.")

    for column in columns:
        add(column, "")
    return "\n".join(lines) + "\n"
