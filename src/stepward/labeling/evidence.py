"""What is known of the solutions of one problem while they are being labelled.

Allocations read it to choose the next rollouts, estimators read it to derive labels. It is a plain function of
the stored rows, so that both can run again without a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from stepward.prm.types import Allocation, Counts, Estimate, Outcome, StepLabel, TokenIds, Verdict

if TYPE_CHECKING:
    from stepward.labeling.changepoint.hints import HintModel  # it reads this module


@dataclass(frozen=True, slots=True)
class SolutionEvidence:
    """The evidence on one solution of T steps.

    Attributes:
        num_steps: T.
        step_tokens: Tokens of each step, length T; the cost of a rollout from prefix t is expected to be the
            sum of those after it.
        outcome: The solution's own outcome; a fault where it is not known.
        draws: For each prefix 0..T the outcomes of the rollouts drawn there, in request order. The own
            outcome is not among them.
        verdicts: For each step the tool verdicts on it, length T (empty tuples where no tool looked).
        prm_scores: For each step a reward model's P(right), length T, or empty where there is none.
        on_policy: True where the completer is the generator (same model, prompt and sampler).
        nodes: The state that each prefix 0..T is, as ``prefix_nodes`` numbers them within the problem: solutions
            with the same number at a prefix are in the same state there. ``draws`` are those for this solution
            alone; the change-point posterior adds those that others drew from the same state. Empty = not known,
            shared with none.
    """

    num_steps: int
    step_tokens: tuple[int, ...]
    outcome: Outcome
    draws: tuple[tuple[Outcome, ...], ...]
    verdicts: tuple[tuple[Verdict, ...], ...] = ()
    prm_scores: tuple[float, ...] = ()
    on_policy: bool = True
    nodes: tuple[int, ...] = ()

    def trials(self, prefix: int) -> tuple[int, int]:
        """(right, right + wrong) among the draws at a prefix: truncated, no_answer and faults left out."""
        draws = self.draws[prefix]
        right = sum(o is Outcome.RIGHT for o in draws)
        return right, right + sum(o is Outcome.WRONG for o in draws)


def prefix_nodes(solutions: Sequence[Sequence[TokenIds]]) -> list[tuple[int, ...]]:
    """A number for each state of a problem: two prefixes have the same one where their token ids are the same.

    Args:
        solutions: The token ids of each step of each solution.

    Returns:
        For each solution T+1 numbers, 0 for the question; none where a step has no ids (no tokenizer saw it). The
        end of a solution is a state of its own, equal only to another's end: what goes on after the same ids is not
        there yet.
    """
    known: dict[tuple[int, TokenIds, bool], int] = {}
    nodes: list[tuple[int, ...]] = []
    for steps in solutions:
        if not all(steps):
            nodes.append(())
            continue
        path = [0]
        for t, ids in enumerate(steps, 1):
            # A chain of (state before, ids of the step) names the whole prefix, step boundaries included.
            path.append(known.setdefault((path[-1], tuple(ids), t == len(steps)), len(known) + 1))
        nodes.append(tuple(path))
    return nodes


@dataclass(frozen=True, slots=True)
class Draw:
    """A rollout to draw: from prefix ``prefix`` of the problem's solution number ``solution``."""

    solution: int
    prefix: int


class AllocationRule(Protocol):
    """Which prefix gets the next rollout.

    A decision reads only the evidence of one problem's solutions, with draws in request order, and constants
    that the manifest holds: so the same seed gives the same rows whatever finishes first.
    """

    @property
    def kind(self) -> Allocation:
        """The word that rows carry; label rules are valid for some kinds only."""
        ...

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """The next round of rollouts for one problem. Called again when all of them have ended; empty = done."""
        ...


@dataclass(frozen=True, slots=True)
class SolutionLabels:
    """What an estimator derives for one solution of T steps.

    Attributes:
        estimates: T+1 prefix estimates; ``counts`` as handed in, value and interval by the estimator.
        labels: T step labels.
        first_error: Index of the first wrong step, or None for none (or not known: see ``decided``).
        decided: False where the estimator could not tell (then all labels are None).
    """

    estimates: tuple[Estimate, ...]
    labels: tuple[StepLabel, ...]
    first_error: int | None
    decided: bool = True


class Estimator(Protocol):
    """Counts -> labels, a pure function."""

    @property
    def name(self) -> str:
        """Registry name, written into rows."""
        ...

    @property
    def version(self) -> str:
        """Changes when the same counts would give other labels."""
        ...

    def estimate(
        self, solutions: Sequence[SolutionEvidence], counts: Sequence[Sequence[Counts]]
    ) -> list[SolutionLabels]:
        """Labels for all solutions of one problem.

        Args:
            solutions: Their evidence.
            counts: For each solution the T+1 counts that the row will hold.
        """
        ...


@dataclass(frozen=True, slots=True)
class LabelingConstants:
    """Run-wide constants that a pilot fixed and the manifest holds.

    Attributes:
        price: lambda, nats a token: information worth less is not bought.
        axis_weights: Grid weights by axis name after empirical-Bayes refit; empty = the priors.
        axis_points: Grid points by axis name in place of the default's (``grid.FINE_POINTS``); empty = its own.
        precision: Measured precision by verifier name.
        recall: Measured recall by verifier name.
        hint: How a reward model's score speaks of a step; None = the score is taken as a calibrated P(right).
    """

    price: float = 4.2e-5
    axis_weights: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    precision: dict[str, float] = field(default_factory=dict[str, float])
    recall: dict[str, float] = field(default_factory=dict[str, float])
    axis_points: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    hint: "HintModel | None" = None
