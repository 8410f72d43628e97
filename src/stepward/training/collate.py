"""Dataset rows -> examples: ids, and each step label on exactly one position.

A row that cannot be placed exactly is refused and counted by reason; unknown labels are masked; nothing is cut
silently. Soft labels stay floats.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stepward.prm.errors import FormatError, InputError
from stepward.prm.models.inputs import EncodedSolution, InputFormat, InputRefused
from stepward.prm.types import Allocation, LabeledSolution, Outcome
from stepward.training.losses import effective_reward

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Example:
    """One solution, ready to be batched.

    Attributes:
        solution_id: The row's.
        problem_id: The row's.
        encoded: Ids and step positions.
        places: Positions that carry a target: the step ends, or every token or block of the steps.
        targets: One a place in [0, 1]; NaN = unknown, masked.
        weights: One a place, not negative.
        right: Right rollouts after each kept step.
        trials: Right or wrong rollouts after each kept step.
        outcome: 1 right, 0 wrong, NaN unknown.
        finished: False where the solution was truncated or gave no answer.
        first_error: Index of the first wrong step, or None.
        decided: Whether ``first_error`` is known: there is one, or every step has a label.
        rolled_in: First steps that are another solution's and carry no target (see ``rollouts``).
    """

    solution_id: str
    problem_id: str
    encoded: EncodedSolution
    places: tuple[int, ...]
    targets: tuple[float, ...]
    weights: tuple[float, ...]
    right: tuple[int, ...]
    trials: tuple[int, ...]
    outcome: float
    finished: bool
    first_error: int | None
    decided: bool
    rolled_in: int = 0

    @property
    def labelled(self) -> int:
        """Steps with a known target."""
        return sum(not math.isnan(t) for t in self.targets)


@dataclass(frozen=True, slots=True)
class CollationReport:
    """What became of the rows; in = kept + refused.

    Attributes:
        rows: Rows seen.
        kept: Examples made.
        refused: Rows refused, by reason.
        examples_of: For each reason the id of the first row.
        steps: Steps of kept rows.
        labelled: Of these with a known target.
        steps_cut: Steps left out for the token limit.
        ids_sampled: Rows whose sampled ids were used.
        ids_encoded: Rows encoded from text, step by step.
    """

    rows: int = 0
    kept: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    examples_of: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    labelled: int = 0
    steps_cut: int = 0
    ids_sampled: int = 0
    ids_encoded: int = 0

    def summary(self) -> str:
        """One line for a person."""
        refused = ", ".join(f"{n} {reason}" for reason, n in self.refused.items()) or "none"
        return (
            f"{self.kept} of {self.rows} rows, {self.labelled} of {self.steps} steps labelled, {self.steps_cut} steps "
            f"cut, ids sampled in {self.ids_sampled} rows and encoded from text in {self.ids_encoded}; refused: "
            f"{refused}"
        )


def targets_label(row: LabeledSolution) -> list[float]:
    """The label that the dataset's rule gave."""
    return [math.nan if s.label is None else float(s.label) for s in row.labels]


def targets_any_right(row: LabeledSolution) -> list[float]:
    """1 where any rollout after the step is right (Math-Shepherd's hard label); the outcome after the last step.

    Unknown where nothing was decided, and for allocations that choose prefixes by what they find.
    """
    if row.allocation not in (Allocation.FIXED_K, Allocation.STOP_AT_FIRST_RIGHT):
        return [math.nan] * len(row.labels)
    targets = [math.nan if not e.counts.decided else float(e.counts.right > 0) for e in row.prefixes[1:]]
    own = outcome_value(row.solution.outcome)
    if targets and math.isnan(targets[-1]):
        targets[-1] = own
    return targets


def targets_value(row: LabeledSolution) -> list[float]:
    """The posterior mean of the prefix that ends with the step."""
    return [math.nan if e.value is None else e.value for e in row.prefixes[1:]]


def targets_no_error_yet(row: LabeledSolution) -> list[float]:
    """P(no wrong step up to and including this one), from the change-point posterior."""
    targets: list[float] = []
    passed = 1.0
    for label in row.labels:
        passed = math.nan if label.p_first_error is None else passed - label.p_first_error
        targets.append(min(max(passed, 0.0), 1.0) if not math.isnan(passed) else math.nan)
    return targets


def targets_progress(row: LabeledSolution) -> list[float]:
    """PAV's effective reward of each step; unknown for all where a value is."""
    values = [e.value for e in row.prefixes]
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return [math.nan] * len(row.labels)
    return list(effective_reward(known))


def targets_outcome(row: LabeledSolution) -> list[float]:
    """The solution's outcome at every step (ReST-EM style credit, VGS)."""
    return [outcome_value(row.solution.outcome)] * len(row.labels)


TARGETS: dict[str, Callable[[LabeledSolution], list[float]]] = {
    "label": targets_label,
    "any_right": targets_any_right,
    "value": targets_value,
    "no_error_yet": targets_no_error_yet,
    "progress": targets_progress,
    "outcome": targets_outcome,
}


def outcome_value(outcome: Outcome | None) -> float:
    """1 right, 0 wrong; NaN for everything else: a truncated solution is not wrong."""
    return {Outcome.RIGHT: 1.0, Outcome.WRONG: 0.0}.get(outcome, math.nan) if outcome else math.nan


def collate(
    rows: Iterable[LabeledSolution],
    inputs: InputFormat,
    *,
    target: str = "label",
    confidence_weights: bool = False,
    mask_after_first_error: bool = False,
    over_limit: str = "refuse",
    block_tokens: int = 0,
    rolled_in: Mapping[str, int] | None = None,
) -> tuple[list[Example], CollationReport]:
    """Examples of the rows, and the account of all of them.

    Args:
        rows: Dataset rows.
        inputs: How they become ids.
        target: A name in ``TARGETS``.
        confidence_weights: Weigh each step by 1 - width of its value's 90 % interval, where there is one.
        mask_after_first_error: Mask the steps after the row's first error (Qwen2.5-Math-PRM).
        over_limit: ``refuse`` rows over the token limit or ``cut`` whole last steps.
        block_tokens: 0 puts targets at step ends. n > 0 puts the solution's outcome at the end of every block of n
            step tokens instead, 1 at every step token (VGS); ``target`` then has no say.
        rolled_in: First steps, by solution id, that are another solution's: they carry no target.

    Raises:
        InputError: No such target, or no row could be used.
    """
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}; known: {', '.join(TARGETS)}")
    examples: list[Example] = []
    refused: Counter[str] = Counter()
    first: dict[str, str] = {}
    seen = cut = steps = labelled = sampled = 0
    for row in rows:
        seen += 1
        try:
            example = _example(row, inputs, target, confidence_weights, mask_after_first_error, over_limit)
            if rolled_in and rolled_in.get(row.solution.id):
                example = _rolled_in(example, rolled_in[row.solution.id])
            if block_tokens:
                example = _outcome_at_blocks(example, block_tokens)
            check_positions(example)
        except FormatError as fault:
            reason = fault.reason if isinstance(fault, InputRefused) else "cannot be encoded"
            refused[reason] += 1
            first.setdefault(reason, f"{row.solution.id}: {fault}")
            continue
        examples.append(example)
        cut += example.encoded.steps_cut
        steps += len(example.places)
        labelled += example.labelled
        sampled += example.encoded.ids_from == "sampled"
    report = CollationReport(
        seen, len(examples), dict(refused), first, steps, labelled, cut, sampled, len(examples) - sampled
    )
    if not examples:
        raise InputError(f"none of {seen} rows can be used: " + "; ".join(first.values()))
    return examples, report


def _example(
    row: LabeledSolution,
    inputs: InputFormat,
    target: str,
    confidence_weights: bool,
    mask_after_first_error: bool,
    over_limit: str,
) -> Example:
    encoded = inputs.encode(
        row.problem, row.solution.steps, tokenizer_hash=row.tokenizer_hash, over_limit=over_limit
    )
    kept = len(encoded.step_ends)
    targets = TARGETS[target](row)[:kept]
    bad = [t for t in targets if not math.isnan(t) and not 0 <= t <= 1]
    if bad:
        raise InputRefused(
            "label outside [0, 1]", f"label {bad[0]} of solution {row.solution.id} lies outside [0, 1]"
        )
    if mask_after_first_error and row.first_error is not None:
        targets = [t if i <= row.first_error else math.nan for i, t in enumerate(targets)]
    weights = [1.0] * kept
    if confidence_weights:
        weights = [
            1.0 if e.low is None or e.high is None else max(1.0 - (e.high - e.low), 0.0)
            for e in row.prefixes[1 : kept + 1]
        ]
    counts = [e.counts for e in row.prefixes[1 : kept + 1]]
    return Example(
        solution_id=row.solution.id,
        problem_id=row.problem.id,
        encoded=encoded,
        places=encoded.step_ends,
        targets=tuple(targets),
        weights=tuple(weights),
        right=tuple(c.right for c in counts),
        trials=tuple(c.decided for c in counts),
        outcome=outcome_value(row.solution.outcome),
        finished=row.solution.outcome not in (Outcome.TRUNCATED, Outcome.NO_ANSWER),
        first_error=row.first_error,
        decided=row.first_error is not None or all(s.label is not None for s in row.labels),
    )


def _rolled_in(example: Example, steps: int) -> Example:
    """The same without the targets and counts of its first steps."""
    if steps >= len(example.places):
        raise InputRefused(
            "no step of its own", f"rollout {example.solution_id} has no step within the token limit"
        )
    blank = (0,) * steps
    return replace(
        example,
        targets=(math.nan,) * steps + example.targets[steps:],
        right=blank + example.right[steps:],
        trials=blank + example.trials[steps:],
        rolled_in=steps,
    )


def _outcome_at_blocks(example: Example, block_tokens: int) -> Example:
    first, last = example.encoded.prompt_length, len(example.encoded.token_ids) - 1
    if example.rolled_in:
        first = example.encoded.step_ends[example.rolled_in - 1] + 1
    places = tuple(sorted({*range(first + block_tokens - 1, last, block_tokens), last}))
    blanks = (0,) * len(places)
    return replace(
        example,
        places=places,
        targets=(example.outcome,) * len(places),
        weights=(1.0,) * len(places),
        right=blanks,
        trials=blanks,
    )


def check_positions(example: Example) -> None:
    """Every label sits on exactly one position after the prompt.

    Raises:
        FormatError: Positions repeat, go back, lie in the prompt or beyond the text.
    """
    lowest, last = example.encoded.prompt_length, len(example.encoded.token_ids) - 1
    for place in example.places:
        if not lowest <= place <= last:
            raise InputRefused(
                "label without its own position",
                f"solution {example.solution_id}: label position {place} lies outside its steps ({lowest} to {last}), "
                "or two labels share one position",
            )
        lowest = place + 1
    if len(example.places) != len(example.targets):
        raise InputRefused(
            "label without its own position",
            f"solution {example.solution_id} has {len(example.targets)} labels for {len(example.places)} positions",
        )


def token_labels(example: Example) -> tuple[np.ndarray, np.ndarray]:
    """Ids and labels token by token, as token classification trainers take them.

    Returns:
        ``input_ids`` int64 and ``labels`` of the same length with -100 off the labelled positions: int64 where all
        labels are 0 or 1, else float64. A boolean or integer column never swallows the sentinel or a soft label.
    """
    ids = np.asarray(example.encoded.token_ids, dtype=np.int64)
    hard = all(math.isnan(t) or t in (0.0, 1.0) for t in example.targets)
    labels = np.full(len(ids), IGNORED, dtype=np.int64 if hard else np.float64)
    for end, value in zip(example.places, example.targets, strict=True):
        if not math.isnan(value):
            labels[end] = int(value) if hard else value
    return ids, labels


def reweigh(
    examples: Sequence[Example], *, balance_classes: bool = False, balance_problems: bool = False
) -> list[Example]:
    """Weights multiplied so that both classes, or all problems, count the same in total.

    Args:
        examples: Of one training set.
        balance_classes: Targets >= .5 and below get equal total weight.
        balance_problems: Each problem gets weight 1 / its number of labelled steps, times the mean number.
    """
    factor_right = factor_wrong = 1.0
    known = [t for e in examples for t in e.targets if not math.isnan(t)]
    if balance_classes and known:
        right = sum(t >= 0.5 for t in known)
        wrong = len(known) - right
        if right and wrong:
            factor_right, factor_wrong = len(known) / (2 * right), len(known) / (2 * wrong)
    per_problem: Counter[str] = Counter()
    for e in examples:
        per_problem[e.problem_id] += e.labelled
    mean = len(known) / max(sum(n > 0 for n in per_problem.values()), 1)
    result: list[Example] = []
    for e in examples:
        share = mean / per_problem[e.problem_id] if balance_problems and per_problem[e.problem_id] else 1.0
        weights = tuple(
            w * share * (factor_right if t >= 0.5 else factor_wrong)
            for w, t in zip(e.weights, e.targets, strict=True)
        )
        result.append(replace(e, weights=weights))
    return result
