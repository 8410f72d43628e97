"""Returns + tool verdicts + judge + hints -> one label a step, and what decided it.

Each rule takes the labels that rollouts gave and the verdicts on the steps, and gives labels of the same shape.
``supported`` never makes a step right: most wrong steps hold true arithmetic and a wrong set-up. An ``unknown``
verdict changes nothing. ``posterior`` alone lets the estimator itself read verdicts and hints, as likelihoods of
the change-point chain; for every other rule the returns are a source of their own and see none of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stepward.labeling.evidence import SolutionEvidence, SolutionLabels
from stepward.labeling.grounded import backed_up, code_reward, paper_reward
from stepward.prm.errors import ConfigError
from stepward.prm.types import StepLabel, Verdict, VerdictKind

Verdicts = Sequence[tuple[Verdict, ...]]

JUDGE = "judge"
CONSENSUS, DISAGREEMENT = "consensus", "no consensus"
HINT = "hint"


@dataclass(frozen=True, slots=True)
class FusionRule:
    """A rule by name.

    Attributes:
        name: As a configuration names it.
        fuse: (the estimator's labels, all that is known of the solution) -> labels with verdicts attached.
        in_posterior: The estimator reads verdicts and hints itself.
        needs_verdicts: Without verdicts the rule says nothing that returns do not say.
    """

    name: str
    fuse: Callable[[SolutionLabels, SolutionEvidence], SolutionLabels]
    in_posterior: bool = False
    needs_verdicts: bool = True


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


def posterior(labels: SolutionLabels, evidence: SolutionEvidence) -> SolutionLabels:
    """Labels of a posterior that has read verdicts and hints: each names the sources that spoke on its step."""
    named: dict[int, str] = {}
    for t, (label, at_step) in enumerate(_pairs(labels, evidence.verdicts)):
        spoke = [v.verifier for v in at_step if v.kind is not VerdictKind.UNKNOWN]
        spoke += [HINT] if evidence.prm_scores else []
        if label.label is not None and spoke:
            named[t] = "+".join(dict.fromkeys([label.decided_by, *spoke]))
    return _with(labels, evidence.verdicts, [x.label for x in labels.labels], labels.first_error, named)


def grounded(
    labels: SolutionLabels, evidence: SolutionEvidence, reward: Callable[[Sequence[int], int], float]
) -> SolutionLabels:
    """GroundedPRM's hybrid (Zhang et al. 2025, arXiv 2510.14942): the sign of the backed-up rewards of a step.

    The solution's own continuation is the verified path from each of its nodes, every rollout a path without
    verdicts. A step whose sum is 0, or that nothing reached, has no label. Labels after the first 0 are unknown:
    GroundedPRM cuts there. Values of prefixes stay those of the returns.
    """
    sums = backed_up(evidence, reward)
    signs = [None if s is None or s == 0 else int(s > 0) for s in sums]
    first = next((t for t, s in enumerate(signs) if s == 0), None)
    hard = [s if first is None or t <= first else None for t, s in enumerate(signs)]
    before = hard if first is None else hard[:first]
    decided = None not in before
    by = {t: GROUNDED for t, h in enumerate(hard) if h is not None}
    cleared = replace(labels, labels=tuple(replace(x, decided_by="") for x in labels.labels), decided=decided)
    return _with(cleared, evidence.verdicts, hard, first if decided else None, by)


GROUNDED = "grounded"


def _of_verdicts(
    rule: Callable[[SolutionLabels, Verdicts], SolutionLabels],
) -> Callable[[SolutionLabels, SolutionEvidence], SolutionLabels]:
    return lambda labels, evidence: rule(labels, evidence.verdicts)


RULES: Mapping[str, FusionRule] = {
    rule.name: rule
    for rule in (
        FusionRule("returns", _of_verdicts(returns_alone), needs_verdicts=False),
        FusionRule("posterior", posterior, in_posterior=True, needs_verdicts=False),
        FusionRule("veto", _of_verdicts(veto)),
        FusionRule("intersect", _of_verdicts(intersect)),
        FusionRule("consensus", _of_verdicts(consensus)),
        FusionRule("grounded_code", lambda labels, evidence: grounded(labels, evidence, code_reward)),
        FusionRule("grounded_paper", lambda labels, evidence: grounded(labels, evidence, paper_reward)),
    )
}
"""All fusion rules by name."""


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
