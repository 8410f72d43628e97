"""The domain records. No other file defines one.

Step indices are 0-based. Prefix ``t`` is the problem and its first ``t`` steps: prefix 0 is the bare problem,
prefix ``T`` the whole solution. ``first_error`` is ProcessBench's: the index of the first wrong step, or None.

Unknown is a value: a fault of ours is an ``Outcome`` or a ``Verdict`` of its own, never "wrong".
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

TokenIds = tuple[int, ...]


class Outcome(StrEnum):
    """What became of a rollout or a solution.

    ``RIGHT`` and ``WRONG`` are verdicts on the final answer. ``TRUNCATED`` and ``NO_ANSWER`` are the policy's
    own doing. The last four are faults of ours and never count against the policy.
    """

    RIGHT = "right"
    WRONG = "wrong"
    TRUNCATED = "truncated"
    NO_ANSWER = "no_answer"
    NO_GOLD = "no_gold"
    UNDECIDED = "undecided"
    TIMEOUT = "timeout"
    ERROR = "error"

    @property
    def is_fault(self) -> bool:
        """True where the fault is ours: the draw leaves every likelihood, its tokens stay charged."""
        return self in _FAULTS


_FAULTS = frozenset({Outcome.NO_GOLD, Outcome.UNDECIDED, Outcome.TIMEOUT, Outcome.ERROR})


class FinishReason(StrEnum):
    """Why an engine stopped: an end token or stop string, the token limit, or an abort."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Phase(StrEnum):
    """Whether a step belongs to a thinking trace or to the answer that follows it."""

    THINK = "think"
    ANSWER = "answer"


class CheckKind(StrEnum):
    """How a final answer is compared with the gold answers."""

    MATH = "math"
    TEXT = "text"
    CHOICE = "choice"
    UNIT_TESTS = "unit_tests"


class VerdictKind(StrEnum):
    """What a verifier says of a claim. ``UNKNOWN`` always carries a reason."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why a verdict is ``UNKNOWN``."""

    NONE = ""
    TIMEOUT = "timeout"
    PARSE = "parse"
    UNSUPPORTED = "unsupported"
    CRASH = "crash"
    AMBIGUOUS = "ambiguous"
    NO_CLAIM = "no_claim"


class Allocation(StrEnum):
    """How rollouts were spread over prefixes; a label rule states for which it is valid."""

    FIXED_K = "fixed_k"
    STOP_AT_FIRST_RIGHT = "stop_at_first_right"
    BINARY_SEARCH = "binary_search"
    INFORMATION_GAIN = "information_gain"
    DIFFICULTY_K = "difficulty_k"
    VARIANCE_ROUNDS = "variance_rounds"
    TWO_FIDELITY = "two_fidelity"
    TREE_SEARCH = "tree_search"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Check:
    """How the final answer of a problem is checked.

    Attributes:
        kind: The comparison.
        tolerance: Relative tolerance for numbers, or None for exact comparison.
        payload: What the kind needs beside the answers (unit tests as source text, choices as JSON).
    """

    kind: CheckKind = CheckKind.MATH
    tolerance: float | None = None
    payload: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, with its gold answers where it has any.

    Attributes:
        id: ``problem_id(source, statement)`` unless the source brings its own.
        statement: Plain text, or the turns of a conversation.
        answers: Acceptable final answers; empty means no gold (kept, marked, never counted as wrong).
        check: How a final answer is compared with them.
        source: Where the problem comes from, such as ``gsm8k_test`` or a Hub id.
        licence: SPDX id or a short text; empty where unknown.
    """

    id: str
    statement: str | tuple[Message, ...]
    answers: tuple[str, ...] = ()
    check: Check = field(default_factory=Check)
    source: str = ""
    licence: str = ""

    @property
    def text(self) -> str:
        """The statement as one text; turns are joined by blank lines."""
        if isinstance(self.statement, str):
            return self.statement
        return "\n\n".join(m.content for m in self.statement)


def problem_id(source: str, statement: str) -> str:
    """A stable id: the first 16 hex digits of SHA-256 over source and statement."""
    return hashlib.sha256(f"{source}\x00{statement}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Step:
    """One reasoning step.

    Attributes:
        text: The step without its separator.
        token_ids: The ids that carry it, separator included, so that the ids of all steps of a solution,
            joined, are the solution's ids. Empty where no tokenizer has seen the text.
        phase: Thinking or answer.
        token_logprobs: Log-probability of each id (natural log) under the policy that sampled it, rounded to
            4 decimals; empty where not asked for.
    """

    text: str
    token_ids: TokenIds = ()
    phase: Phase = Phase.ANSWER
    token_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefix:
    """The state s_t of tree search. Its identity is its token ids, never re-encoded text.

    Attributes:
        problem_id: The problem it belongs to.
        prompt_ids: The rendered prompt, encoded once.
        solution_ids: The ids of the first ``num_steps`` steps, as they were sampled.
        num_steps: t.
    """

    problem_id: str
    prompt_ids: TokenIds
    solution_ids: TokenIds = ()
    num_steps: int = 0

    @property
    def token_ids(self) -> TokenIds:
        """What an engine continues."""
        return self.prompt_ids + self.solution_ids

    @property
    def num_tokens(self) -> int:
        """How many those are; joining them for it would cost more than the rest of a request."""
        return len(self.prompt_ids) + len(self.solution_ids)


@dataclass(frozen=True, slots=True)
class Sampler:
    """How tokens are drawn. Every field is sent explicitly; a model's bundled defaults never apply.

    Attributes:
        temperature: 0 is greedy.
        top_p: Nucleus mass in (0, 1].
        top_k: 0 keeps all.
        min_p: Least probability relative to the most likely token.
        max_tokens: Most tokens a rollout may have.
        stop: Stop strings, found in text and not in ids; the text keeps them.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 1024
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rollout:
    """A policy's completion of a prefix.

    Attributes:
        problem_id: The problem.
        num_steps: The prefix's t.
        index: Which draw at that prefix, from 0.
        seed: The 63-bit seed of this draw alone.
        token_ids: What was sampled, the end token included where there was one.
        text: The decoded continuation, without end token.
        finish_reason: Why it ended.
        logprobs: Log-probability of each sampled id (natural log), or None where not asked for.
        outcome: None until graded.
        answer: The extracted final answer, or None.
        error: The engine's message where the outcome is ``ERROR``.
    """

    problem_id: str
    num_steps: int
    index: int
    seed: int
    token_ids: TokenIds
    text: str
    finish_reason: FinishReason
    logprobs: tuple[float, ...] | None = None
    outcome: Outcome | None = None
    answer: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one verifier says of one claim.

    Attributes:
        kind: Supported, refuted or unknown.
        verifier: Name of the verifier.
        version: Its version: a change of behaviour changes it.
        reason: Why it is unknown; ``NONE`` otherwise.
        evidence: A sentence for a person: the claim and what it was checked against.
        span: Character span of the claim in the step's text, or None where it concerns the whole.
        seconds: CPU seconds spent; by the clock for an exact comparison of answers, which takes less time than to
            ask for a thread's CPU seconds. Never stored in a row.
    """

    kind: VerdictKind
    verifier: str
    version: str
    reason: Reason = Reason.NONE
    evidence: str = ""
    span: tuple[int, int] | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """How many draws at a prefix had each outcome. The sum is the number of draws.

    Every count of the data contract comes from here; ``n_unique`` counts distinct texts among the draws.
    """

    right: int = 0
    wrong: int = 0
    truncated: int = 0
    no_answer: int = 0
    no_gold: int = 0
    undecided: int = 0
    timeout: int = 0
    error: int = 0
    n_unique: int = 0

    @property
    def total(self) -> int:
        """All draws, whatever became of them."""
        return (
            self.right + self.wrong + self.truncated + self.no_answer
            + self.no_gold + self.undecided + self.timeout + self.error
        )  # fmt: skip

    @property
    def decided(self) -> int:
        """Draws with a verdict on a final answer: right + wrong."""
        return self.right + self.wrong

    @classmethod
    def of(cls, rollouts: Iterable[Rollout]) -> "Counts":
        """Count graded rollouts. Raises ValueError on one that is not graded."""
        drawn = list(rollouts)
        for rollout in drawn:
            if rollout.outcome is None:
                raise ValueError(
                    f"rollout {rollout.index} at prefix {rollout.num_steps} of problem {rollout.problem_id} "
                    "is not graded; grade it before counting"
                )
        tally = Counter([str(r.outcome) for r in drawn])
        return cls(**tally, n_unique=len({r.text for r in drawn}))


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of the value of a prefix: P(right final answer | prefix) under the completer.

    Attributes:
        counts: The draws behind it.
        value: Posterior mean, or None where nothing is known.
        low: 5 % quantile of the posterior (90 % interval, equal tails).
        high: 95 % quantile.
    """

    counts: Counts = field(default_factory=Counts)
    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class StepLabel:
    """The label of one step and what it rests on.

    Attributes:
        label: 1 right, 0 wrong, None unknown.
        p_first_error: P(this step is the first wrong one), or None.
        decided_by: What decided the label, such as ``returns``, ``arithmetic``, ``consensus``.
        verdicts: Tool verdicts on the step's claims.
        rationale: A critique in words, where one was made.
        hint: A reward model's P(this step is right), rounded to 4 decimals, where one was read as evidence.
    """

    label: int | None = None
    p_first_error: float | None = None
    decided_by: str = ""
    verdicts: tuple[Verdict, ...] = ()
    rationale: str | None = None
    hint: float | None = None


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """Who sampled: written into every row.

    Attributes:
        name: Hub id or folder name, never a path of a machine.
        revision: Commit or content hash of the weights.
        engine: vllm, vllm_server, openai, transformers, embedded, replay, scripted.
        sampler: The effective sampler.
        prompt_hash: Hash of the prompt template as rendered, see ``prm.prompts``.
    """

    name: str
    revision: str
    engine: str
    sampler: Sampler = field(default_factory=Sampler)
    prompt_hash: str = ""


@dataclass(frozen=True, slots=True)
class LabelerInfo:
    """Which labelling made a row."""

    name: str
    version: str
    config_hash: str


@dataclass(frozen=True, slots=True)
class Solution:
    """Steps to the end and the extracted final answer; sampled, or brought by the user.

    Attributes:
        id: ``{problem_id}-{index}``.
        problem_id: The problem.
        steps: In order; their ids joined are the solution's ids.
        seed: The seed that drew it; 0 for a solution from elsewhere.
        outcome: None until graded.
        final_answer: As extracted, or None.
        finish_reason: Why the engine stopped.
        ids_from: ``sampled``, ``encoded`` where the text came from elsewhere and was encoded once, or ``searched``
            where a tree search put it together from the policy's draws.
        outcome_from: What the outcomes of this solution and of its rollouts rest on: ``answers`` (the problem's
            own), ``votes`` (the majority of its solutions) or ``spark`` (a judge's consensus).
        outcome_share: Soft outcome where there is no reference answer: share of the votes, or of the reviews.
    """

    id: str
    problem_id: str
    steps: tuple[Step, ...]
    seed: int = 0
    outcome: Outcome | None = None
    final_answer: str | None = None
    finish_reason: FinishReason = FinishReason.STOP
    ids_from: str = "sampled"
    outcome_from: str = "answers"
    outcome_share: float | None = None

    @property
    def token_ids(self) -> TokenIds:
        """All ids, in order."""
        return tuple(i for step in self.steps for i in step.token_ids)


MARKS = {
    "solve_rate_0": "no draw from the bare problem is right: too hard for the policy, or its answer is wrong",
    "solve_rate_1": "every draw from the bare problem is right",
    "no_verdict": "rollouts were given up: none of the first ones had an answer that could be judged",
    "no_majority": "no answer won the votes, or the judge: there was nothing to compare rollouts with",
    "boundary_in_token": "a step boundary lies inside a token, which stands whole in the earlier step",
    "degenerate": "all draws at a prefix are one text (greedy, or answers from a cache): they were counted once",
    "off_policy": "the rollouts are not of the solution's generator (another model, or a tree search): values are "
    "relative to the completer",
}
"""Marks that labelling puts on rows, and what they say."""


@dataclass(frozen=True, slots=True)
class LabeledSolution:
    """One row of the dataset.

    Attributes:
        problem: The problem.
        solution: The solution, T steps.
        prefixes: T+1 estimates, prefix 0 to prefix T.
        labels: T step labels.
        first_error: Index of the first wrong step by the label rule, or None.
        policy: Who sampled the solution.
        completer: Who sampled the rollouts.
        tokenizer_hash: Hash of the tokenizer whose ids the row holds.
        seed: The run seed.
        allocation: How rollouts were spread.
        prompt_tokens: Tokens of the prompt.
        generated_tokens: Tokens sampled for this row: the solution and all its rollouts.
        labeler: Which labelling made the row.
        marks: What a reader must know before using the row, such as ``solve_rate_0``; see ``MARKS``.
    """

    problem: Problem
    solution: Solution
    prefixes: tuple[Estimate, ...]
    labels: tuple[StepLabel, ...]
    first_error: int | None
    policy: PolicyInfo
    completer: PolicyInfo
    tokenizer_hash: str
    seed: int
    allocation: Allocation
    prompt_tokens: int
    generated_tokens: int
    labeler: LabelerInfo
    marks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        steps = len(self.solution.steps)
        if len(self.labels) != steps or len(self.prefixes) != steps + 1:
            raise ValueError(
                f"solution {self.solution.id} has {steps} steps, {len(self.labels)} labels and "
                f"{len(self.prefixes)} prefixes; a row needs one label a step and one prefix more than steps"
            )
