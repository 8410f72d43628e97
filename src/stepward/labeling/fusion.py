"""Returns + tool verdicts + judge -> one label a step, and what decided it.

Each rule takes the labels that rollouts gave and the verdicts on the steps, and gives labels of the same shape.
``supported`` never makes a step right: most wrong steps hold true arithmetic and a wrong set-up. An ``unknown``
verdict changes nothing. Evidence as likelihood within the posterior itself is ``estimators.changepoint``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from stepward.labeling.evidence import SolutionLabels
from stepward.prm.errors import ConfigError
from stepward.prm.types import StepLabel, Verdict, VerdictKind

Verdicts = Sequence[tuple[Verdict, ...]]
FusionRule = Callable[[SolutionLabels, Verdicts], SolutionLabels]

JUDGE = "judge"
CONSENSUS, DISAGREEMENT = "consensus", "no consensus"


def returns_alone(labels: SolutionLabels, verdicts: Verdicts) -> SolutionLabels:
    """The rollouts' labels; verdicts are kept beside them as evidence."""
    return _with(labels, verdicts, [label.label for label in labels.labels], labels.first_error, {})


def veto(labels: SolutionLabels, verdicts: Verdicts) -> SolutionLabels:
    """A refuted step is wrong whatever its returns say; the first error moves to it where it comes earlier."""
    by = _refuted_by(verdicts)
    hard = [0 if t in by else label.label for t, label in enumerate(labels.labels)]
    candidates = [t for t in (labels.first_error, min(by, default=None)) if t is not None]
    return replace(
        _with(labels, verdicts, hard, min(candidates, default=None), by),
        decided=labels.decided or bool(by),
    )


def intersect(labels: SolutionLabels, verdicts: Verdicts) -> SolutionLabels:
    """A step keeps its label only where no tool contradicts it; else it is unknown.

    Wrong by returns and refuted, or right by returns and not refuted, agree. A step that is wrong by returns with
    claims that the tools support is a contradiction too, though a weak one: the label stays.
    """
    by = _refuted_by(verdicts)
    hard = [None if t in by and label.label == 1 else label.label for t, label in enumerate(labels.labels)]
    first = labels.first_error
    contradicted = [t for t in by if first is None or t < first]
    # An earlier refuted step makes the place of the first error uncertain, and with it everything from there on.
    if contradicted:
        return replace(_with(labels, verdicts, hard, None, by), decided=False)
    return _with(labels, verdicts, hard, first, by)


def consensus(labels: SolutionLabels, verdicts: Verdicts, *, judge: str = JUDGE) -> SolutionLabels:
    """Keep a solution only where returns and judge agree on the first error (Zhang et al. 2025, Qwen's consensus).

    Steps after the first error are left unknown, as the paper drops them. Where the judge could not tell a step
    before its first refuted one, there is no agreement.

    Args:
        labels: From returns.
        verdicts: Among them the judge's, one a step.
        judge: Name of the verifier that is the judge.
    """
    found, sure = _first_refuted(verdicts, judge)
    if not labels.decided or not sure or found != labels.first_error:
        unknown = [
            StepLabel(None, x.p_first_error, DISAGREEMENT, tuple(v)) for x, v in _pairs(labels, verdicts)
        ]
        return replace(labels, labels=tuple(unknown), first_error=None, decided=False)
    last = labels.first_error if labels.first_error is not None else len(labels.labels) - 1
    hard = [None if t > last else int(t != labels.first_error) for t in range(len(labels.labels))]
    return _with(labels, verdicts, hard, labels.first_error, dict.fromkeys(range(last + 1), CONSENSUS))


def grounded_reward(verdicts: Sequence[int], final: int) -> float:
    """GroundedPRM's reward of one simulated path, as its code computes it.

    R = (1/N) sum_{i=0}^{N-1} v_i (N - i)/N + (1/N) F, over the N verdicts that remain when the expanded node's own
    and the last are dropped; F's coefficient is 1 where none remains. ``selection.backup_decayed`` spreads it.

    Args:
        verdicts: +1 or -1 for each step of the simulated path, the expanded node's own first.
        final: +1 where the final answer is right, else -1.
    """
    inner = verdicts[1:-1]
    n = len(inner)
    if n == 0:
        return float(final)
    return sum(v * (n - i) / n for i, v in enumerate(inner)) / n + final / n


RULES: dict[str, FusionRule] = {
    "returns": returns_alone,
    "veto": veto,
    "intersect": intersect,
    "consensus": consensus,
}


def fusion_rule(name: str) -> FusionRule:
    """The rule of that name.

    Raises:
        ConfigError: No such rule.
    """
    if name not in RULES:
        raise ConfigError([f"fusion: {name!r} is unknown; one of {', '.join(RULES)}"])
    return RULES[name]


def _with(
    labels: SolutionLabels,
    verdicts: Verdicts,
    hard: Sequence[int | None],
    first_error: int | None,
    decided_by: dict[int, str],
) -> SolutionLabels:
    """The labels with verdicts attached; ``decided_by`` names steps that something beside returns decided."""
    steps = [
        replace(x, label=hard[t], decided_by=decided_by.get(t, x.decided_by), verdicts=tuple(v))
        for t, (x, v) in enumerate(_pairs(labels, verdicts))
    ]
    return replace(labels, labels=tuple(steps), first_error=first_error)


def _pairs(labels: SolutionLabels, verdicts: Verdicts) -> list[tuple[StepLabel, tuple[Verdict, ...]]]:
    return list(zip(labels.labels, verdicts or [()] * len(labels.labels), strict=True))


def _refuted_by(verdicts: Verdicts) -> dict[int, str]:
    """Refuted steps and who refuted them."""
    found: dict[int, str] = {}
    for t, at_step in enumerate(verdicts):
        names = [v.verifier for v in at_step if v.kind is VerdictKind.REFUTED]
        if names:
            found[t] = "+".join(dict.fromkeys(names))
    return found


def _first_refuted(verdicts: Verdicts, verifier: str) -> tuple[int | None, bool]:
    """(first step that one verifier refutes, whether it was sure of every step before it)."""
    for t, at_step in enumerate(verdicts):
        kinds = {v.kind for v in at_step if v.verifier == verifier}
        if VerdictKind.REFUTED in kinds:
            return t, True
        if VerdictKind.SUPPORTED not in kinds:
            return None, False
    return None, bool(verdicts)
