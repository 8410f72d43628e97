"""Rationales for generative reward models, in words that the evidence on a step allows and no others.

Built from what tools found, from the rollouts' counts before and after the step, and from the label: nothing is
invented. A step without a label, or without any evidence, gets none.
"""

from dataclasses import replace

from stepward.prm.types import Estimate, LabeledSolution, StepLabel, VerdictKind

_MOST = 3
"""Claims of a step that are told; the others are counted."""


def rationale_of(label: StepLabel, before: Estimate, after: Estimate) -> str | None:
    """A few sentences on one step, or None where nothing is known.

    Args:
        label: Its label with verdicts.
        before: The prefix that it continues.
        after: The prefix that ends with it.
    """
    if label.label is None:
        return None
    said = [*_claims(label, VerdictKind.REFUTED), *_claims(label, VerdictKind.SUPPORTED)]
    said += _continuations(before, after)
    if not said:
        return None
    verdict = "The step is right." if label.label == 1 else "The step is wrong."
    return " ".join([*said, verdict])


def with_rationales(row: LabeledSolution) -> LabeledSolution:
    """The row with a rationale at every step that can have one; those that are there stay."""
    labels = tuple(
        replace(x, rationale=x.rationale or rationale_of(x, row.prefixes[t], row.prefixes[t + 1]))
        for t, x in enumerate(row.labels)
    )
    return replace(row, labels=labels)


def _claims(label: StepLabel, kind: VerdictKind) -> list[str]:
    """What tools say of the claims of one kind, in their own words where they have any."""
    what = "is false" if kind is VerdictKind.REFUTED else "holds"
    found = [v for v in label.verdicts if v.kind is kind]
    told = [
        f"Checked by {v.verifier}: {' '.join(v.evidence.split()).rstrip('.')}."
        if v.evidence
        else f"A claim checked by {v.verifier} {what}."
        for v in found[:_MOST]
    ]
    left = len(found) - _MOST
    return [*told, f"Of {left} further claims it says the same."] if left > 0 else told


def _continuations(before: Estimate, after: Estimate) -> list[str]:
    """What rollouts show; only counts of right and wrong ends are told, never a bare estimate."""
    parts: list[str] = []
    for where, counts in (("before", before.counts), ("after", after.counts)):
        if counts.decided:
            parts.append(f"{counts.right} of {counts.decided} continuations from {where} it end right")
    return [f"{'; '.join(parts)}."] if parts else []
