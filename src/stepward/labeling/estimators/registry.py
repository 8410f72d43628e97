"""Names to estimators. To add one, put a file with a decorated function into this folder (or an entry point).

::

    @register("half_right", version="1", valid_for={Allocation.FIXED_K})
    def half_right(solutions, counts, *, allocation, truncated_as, constants):
        ...
        return [SolutionLabels(...), ...]

Every module of this folder is imported at the first look-up, so no other file has to be touched. Packages
elsewhere name a module in the entry-point group ``stepward.labelers``; loading it runs its decorators.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeVar

from stepward.labeling.evidence import LabelingConstants, SolutionEvidence, SolutionLabels
from stepward.prm.errors import ConfigError
from stepward.prm.plugins import Registry
from stepward.prm.types import Allocation, Counts, Estimate, StepLabel

TruncatedAs = Literal["exclude", "wrong", "bounds"]
"""How a rule reads draws that ended without an answer (``truncated``, ``no_answer``): left out, as wrong, or
left out with an interval that covers both readings."""


class LabelRule(Protocol):
    """Labels for all solutions of one problem: what ``register`` decorates."""

    def __call__(
        self,
        solutions: Sequence[SolutionEvidence],
        counts: Sequence[Sequence[Counts]],
        *,
        allocation: Allocation,
        truncated_as: TruncatedAs,
        constants: LabelingConstants,
    ) -> list[SolutionLabels]:
        """One SolutionLabels a solution, in order."""
        ...


@dataclass(frozen=True, slots=True)
class RegisteredEstimator:
    """A label rule with what the registry knows of it.

    Attributes:
        name: Registry name, written into rows.
        version: Changes when the same counts would give other labels.
        valid_for: Allocations whose counts the rule can read without bias.
        rule: The function, called with keyword options of its own beside the common three.
    """

    name: str
    version: str
    valid_for: frozenset[Allocation]
    rule: Callable[..., list[SolutionLabels]]


@dataclass(frozen=True, slots=True)
class BoundEstimator:
    """An ``Estimator``: a registered rule, bound to one allocation and its options."""

    name: str
    version: str
    allocation: Allocation
    valid: bool
    rule: LabelRule
    truncated_as: TruncatedAs
    constants: LabelingConstants

    def estimate(
        self, solutions: Sequence[SolutionEvidence], counts: Sequence[Sequence[Counts]]
    ) -> list[SolutionLabels]:
        """Labels for all solutions of one problem; all unknown where the allocation does not suit the rule.

        Raises:
            ValueError: Evidence and counts do not pair up.
        """
        for number, (evidence, row) in enumerate(zip(solutions, counts, strict=True)):
            check_shapes(evidence, row, number)
        if not self.valid:
            return [undecided(s, c) for s, c in zip(solutions, counts, strict=True)]
        return self.rule(
            solutions,
            counts,
            allocation=self.allocation,
            truncated_as=self.truncated_as,
            constants=self.constants,
        )


def check_shapes(evidence: SolutionEvidence, counts: Sequence[Counts], number: int) -> None:
    """Raise ValueError unless evidence and counts describe T steps and T+1 prefixes alike."""
    steps = evidence.num_steps
    if steps < 1 or len(evidence.step_tokens) != steps:
        raise ValueError(
            f"labelling solution {number}: {steps} steps but {len(evidence.step_tokens)} step token counts; "
            "give one token count a step and at least one step"
        )
    if len(evidence.draws) != steps + 1 or len(counts) != steps + 1:
        raise ValueError(
            f"labelling solution {number} of {steps} steps: {len(evidence.draws)} lists of draws and "
            f"{len(counts)} counts; both need one entry a prefix, {steps + 1}"
        )
    for name, values in (("verdicts", evidence.verdicts), ("prm_scores", evidence.prm_scores)):
        if values and len(values) != steps:
            raise ValueError(
                f"labelling solution {number} of {steps} steps: {len(values)} {name}; give one a step or none"
            )


def undecided(evidence: SolutionEvidence, counts: Sequence[Counts]) -> SolutionLabels:
    """What a rule says where it cannot tell: the counts are kept, every label is unknown."""
    return SolutionLabels(
        estimates=tuple(Estimate(c) for c in counts),
        labels=tuple(StepLabel() for _ in range(evidence.num_steps)),
        first_error=None,
        decided=False,
    )


Rule = TypeVar("Rule", bound=Callable[..., list[SolutionLabels]])
REGISTRY: Registry[RegisteredEstimator] = Registry(
    "estimator", "stepward.labeling.estimators", "stepward.labelers"
)


def register(name: str, *, version: str, valid_for: Collection[Allocation]) -> Callable[[Rule], Rule]:
    """Decorator that files a label rule under ``name``. Raises ValueError where the name is taken."""
    return lambda rule: REGISTRY.file(
        name, RegisteredEstimator(name, version, frozenset(valid_for), rule), rule
    )


def estimators() -> dict[str, RegisteredEstimator]:
    """All estimators by name, in-tree and from entry points."""
    return REGISTRY.all()


def make_estimator(
    name: str,
    *,
    allocation: Allocation,
    truncated_as: TruncatedAs = "bounds",
    constants: LabelingConstants | None = None,
    **options: object,
) -> BoundEstimator:
    """The estimator ``name`` for rows of one allocation.

    Args:
        name: Registry name, see ``estimators()``.
        allocation: How the rollouts were spread. Where the rule is not valid for it, every label is unknown.
        truncated_as: How draws without an answer are read.
        constants: What the pilot fixed; None = the defaults.
        options: The rule's own options.

    Raises:
        ConfigError: No such estimator.
    """
    known = estimators()
    if name not in known:
        raise ConfigError([f"labeler: {name!r} is unknown; one of {', '.join(known)}"])
    entry = known[name]
    return BoundEstimator(
        name=name,
        version=entry.version,
        allocation=allocation,
        valid=allocation in entry.valid_for,
        rule=partial(entry.rule, **options),
        truncated_as=truncated_as,
        constants=constants or LabelingConstants(),
    )
