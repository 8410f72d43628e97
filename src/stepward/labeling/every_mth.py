"""A cost cap for long solutions: only every m-th prefix gets rollouts and labels.

Steps are taken m at a time for the allocation and the estimator, which then know of nothing else. What they find is
put back on the single steps as far as it holds for them: steps of a right group are right, since nothing went wrong in
it; of a wrong group only its last step is known to stand on a wrong state, and which of them was first is not known.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from stepward.labeling.evidence import (
    AllocationRule,
    Draw,
    Estimator,
    SolutionEvidence,
    SolutionLabels,
)
from stepward.prm.types import Allocation, Counts, Estimate, Outcome, StepLabel, Verdict


def kept_prefixes(num_steps: int, every: int) -> tuple[int, ...]:
    """Prefixes that are labelled: 0, m, 2m, ... and the last one.

    Args:
        num_steps: T.
        every: m >= 1.
    """
    return (*range(0, num_steps, every), num_steps)


@dataclass(frozen=True, slots=True)
class EveryMth:
    """An allocation that draws at kept prefixes only.

    Attributes:
        inner: Chooses among them.
        every: m.
    """

    inner: AllocationRule
    every: int

    @property
    def kind(self) -> Allocation:
        """The inner rule's: what it says of the draws at a prefix holds for those that have any."""
        return self.inner.kind

    def next_draws(self, solutions: Sequence[SolutionEvidence]) -> list[Draw]:
        """The inner rule's draws, at their prefixes among all."""
        draws = self.inner.next_draws([grouped(s, self.every) for s in solutions])
        kept = [kept_prefixes(s.num_steps, self.every) for s in solutions]
        return [Draw(d.solution, kept[d.solution][d.prefix]) for d in draws]


@dataclass(frozen=True, slots=True)
class EveryMthEstimator:
    """An estimator that sees kept prefixes only. ``inner`` reads groups of ``every`` steps as steps."""

    inner: Estimator
    every: int

    @property
    def name(self) -> str:
        """The inner one's."""
        return self.inner.name

    @property
    def version(self) -> str:
        """The inner one's, and m: the same counts would give other labels."""
        return f"{self.inner.version}/{self.every}"

    def estimate(
        self, solutions: Sequence[SolutionEvidence], counts: Sequence[Sequence[Counts]]
    ) -> list[SolutionLabels]:
        """Labels for all solutions of one problem, on single steps."""
        kept = [kept_prefixes(s.num_steps, self.every) for s in solutions]
        found = self.inner.estimate(
            [grouped(s, self.every) for s in solutions],
            [[row[t] for t in at] for row, at in zip(counts, kept, strict=True)],
        )
        return [
            spread(labels, at, row, s.verdicts)
            for labels, at, row, s in zip(found, kept, counts, solutions, strict=True)
        ]


def grouped(evidence: SolutionEvidence, every: int) -> SolutionEvidence:
    """Evidence on groups of m steps. A reward model's score of a group is its lowest."""
    at = kept_prefixes(evidence.num_steps, every)
    spans = list(pairwise(at))
    verdicts, scores, tokens = evidence.verdicts, evidence.prm_scores, evidence.step_tokens
    draws: list[tuple[Outcome, ...]] = [evidence.draws[t] for t in at]
    return replace(
        evidence,
        num_steps=len(spans),
        step_tokens=tuple(sum(tokens[a:b]) for a, b in spans),
        draws=tuple(draws),
        verdicts=tuple(tuple(v for t in verdicts[a:b] for v in t) for a, b in spans) if verdicts else (),
        prm_scores=tuple(min(scores[a:b]) for a, b in spans) if scores else (),
    )


def spread(
    found: SolutionLabels,
    kept: Sequence[int],
    counts: Sequence[Counts],
    verdicts: Sequence[tuple[Verdict, ...]] = (),
) -> SolutionLabels:
    """Labels of groups put on single steps.

    Args:
        found: Of the groups.
        kept: Their prefixes among all, one more than groups.
        counts: T+1 counts, which the estimates of prefixes between kept ones hold (they have no draws).
        verdicts: T tuples of tool verdicts, put back on their own steps where the labels hold them; or none.
    """
    estimates = [Estimate(c) for c in counts]
    for t, estimate in zip(kept, found.estimates, strict=True):
        estimates[t] = estimate
    labels: list[StepLabel] = []
    wrong_before = False
    for label, (a, b) in zip(found.labels, pairwise(kept), strict=True):
        size = b - a
        p = None if label.p_first_error is None else round(label.p_first_error / size, 6)
        known = label.label == 1 or (label.label == 0 and wrong_before)
        inner = replace(label, p_first_error=p) if known else StepLabel(p_first_error=p)
        own = verdicts[a:b] if label.verdicts and verdicts else [()] * size
        each = [*[inner] * (size - 1), replace(label, p_first_error=p)]
        labels += [replace(x, verdicts=v) for x, v in zip(each, own, strict=True)]
        wrong_before = wrong_before or label.label == 0
    first = found.first_error
    if first is not None:
        # The group holds the first error; where it holds several steps, which one is not known.
        first = kept[first] if kept[first + 1] - kept[first] == 1 else None
    return SolutionLabels(tuple(estimates), tuple(labels), first, found.decided)
