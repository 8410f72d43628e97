"""Is this right? The protocol of verifiers, their registry, and how several verdicts become one.

A verifier reads a problem and the steps of a solution and says, step by step, what it found. ``SUPPORTED`` never
means that a step is right, only that the claims it was able to read are. A fault (time-out, crash, text that does
not parse) is ``UNKNOWN`` with a reason and never a refutation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from stepward.prm.errors import InputError
from stepward.prm.types import Problem, Reason, Verdict, VerdictKind

ENTRY_POINT_GROUP = "stepward.verifiers"


@runtime_checkable
class Verifier(Protocol):
    """Looks for claims in the steps of a solution and decides those that it can."""

    @property
    def name(self) -> str:
        """Registry name, written into every verdict."""
        ...

    @property
    def version(self) -> str:
        """Changes when the same input could get another verdict."""
        ...

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """Verdicts on each step of one solution.

        Args:
            problem: The problem; its statement may bind values that steps use.
            steps: The texts of the steps, in order: T of them. Untrusted.

        Returns:
            T tuples, one a step; empty where the verifier found nothing to say. Spans count characters of that
            step's text. A fault is a verdict, not an exception.
        """
        ...


Factory = Callable[..., object]  # A plugin may return anything; make_verifier looks.
Combination = Callable[[Sequence[Verdict]], Verdict]

_registry: dict[str, Factory] = {}


def register_verifier(name: str) -> Callable[[Factory], Factory]:
    """Register a verifier's factory under a name: ``@register_verifier("answer")``.

    Raises:
        InputError: Another factory already has the name.
    """

    def register(factory: Factory) -> Factory:
        if _registry.setdefault(name, factory) is not factory:
            raise InputError(
                f"registering verifier {name!r}: {_registry[name]!r} already has that name; choose another"
            )
        return factory

    return register


def verifier_names() -> tuple[str, ...]:
    """Names that ``make_verifier`` accepts: registered here and announced by installed packages, sorted."""
    return tuple(sorted({*_registry, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))}))


def make_verifier(name: str, /, **options: object) -> Verifier:
    """Build the verifier of that name.

    Args:
        name: A registered name, or the name of an entry point in the group ``stepward.verifiers``.
        options: What its factory takes.

    Raises:
        InputError: No verifier has that name, its package fails to import, two packages announce it, or what
            its factory returns is not a verifier.
    """
    made = _factory(name)(**options)
    if not isinstance(made, Verifier):
        raise InputError(
            f"building verifier {name!r}: its factory returned {type(made).__name__}, which lacks name, version "
            "or verify; see stepward.verifiers.base.Verifier"
        )
    return made


def _factory(name: str) -> Factory:
    if name in _registry:
        return _registry[name]
    points = tuple(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if not points:
        raise InputError(
            f"no verifier is called {name!r}; there are: {', '.join(verifier_names()) or 'none'}"
        )
    if len({point.value for point in points}) > 1:
        owners = ", ".join(sorted(point.value for point in points))
        raise InputError(f"several packages announce a verifier {name!r} ({owners}); uninstall all but one")
    try:
        loaded = points[0].load()
    except Exception as fault:  # A plugin's import may fail in any way; the message must name the plugin.
        raise InputError(f"loading verifier {name!r} from {points[0].value}: {fault!r}; repair it") from fault
    return loaded


def unknown(
    verifier: str,
    version: str,
    reason: Reason,
    evidence: str = "",
    *,
    span: tuple[int, int] | None = None,
    seconds: float = 0.0,
) -> Verdict:
    """An ``UNKNOWN`` verdict; its reason is not optional."""
    if reason is Reason.NONE:
        raise ValueError(f"{verifier} gave an unknown verdict without a reason ({evidence!r}); give one")
    return Verdict(VerdictKind.UNKNOWN, verifier, version, reason, evidence, span, seconds)


def decisive(verdict: Verdict) -> bool:
    """True for supported and refuted."""
    return verdict.kind is not VerdictKind.UNKNOWN


def first_decisive(verdicts: Sequence[Verdict]) -> Verdict:
    """The first verdict that is supported or refuted, as it is; else the last unknown.

    Raises:
        ValueError: There is no verdict at all.
    """
    return next(filter(decisive, verdicts), _last(verdicts))


def unanimous(verdicts: Sequence[Verdict]) -> Verdict:
    """Supported or refuted where all decisive verdicts say so; ``UNKNOWN`` / ambiguous where two disagree.

    Unknown verdicts have no voice. Where none is decisive the last unknown is returned.

    Raises:
        ValueError: There is no verdict at all.
    """
    last = _last(verdicts)
    voices = [v for v in verdicts if decisive(v)]
    if not voices:
        return last
    kinds = {v.kind for v in voices}
    if len(kinds) == 1:
        return _joined(verdicts, kinds.pop(), Reason.NONE)
    return _joined(verdicts, VerdictKind.UNKNOWN, Reason.AMBIGUOUS)


def weighted(
    verdicts: Sequence[Verdict], *, precision: Mapping[str, float], threshold: float = 0.9, prior: float = 0.5
) -> Verdict:
    """Naive Bayes over decisive verdicts, each weighted by its verifier's measured precision.

    With precision p a supporting verdict adds log(p / (1 - p)) to the log-odds that the claim is true, a
    refuting one subtracts it. The verifiers' errors are taken as independent, which overstates agreement of
    verifiers that share code.

    Args:
        verdicts: Of any verifiers, at least one.
        precision: Share of a verifier's decisive verdicts that are right, in (0, 1), by verifier name. A
            verifier that is not listed has no voice.
        threshold: Least probability, in (0.5, 1), at which the claim is called true or false.
        prior: P(claim is true) before any verdict, in (0, 1).

    Returns:
        Supported, refuted, or unknown / ambiguous between the two thresholds.

    Raises:
        ValueError: There is no verdict, or a number is out of its range.
    """
    if not 0.5 < threshold < 1 or not 0 < prior < 1:
        raise ValueError(f"threshold {threshold} must lie in (0.5, 1) and prior {prior} in (0, 1)")
    last = _last(verdicts)
    voices = [v for v in verdicts if decisive(v) and v.verifier in precision]
    if not voices:
        return last if not decisive(last) else _joined(verdicts, VerdictKind.UNKNOWN, Reason.UNSUPPORTED)
    log_odds = _logit(prior, "prior")
    for verdict in voices:
        weight = _logit(precision[verdict.verifier], verdict.verifier)
        log_odds += weight if verdict.kind is VerdictKind.SUPPORTED else -weight
    if abs(log_odds) < _logit(threshold, "threshold"):
        return _joined(verdicts, VerdictKind.UNKNOWN, Reason.AMBIGUOUS)
    return _joined(verdicts, VerdictKind.SUPPORTED if log_odds > 0 else VerdictKind.REFUTED, Reason.NONE)


@dataclass(frozen=True, slots=True)
class Combined:
    """Several verifiers as one: every step's verdicts are combined into one verdict.

    Attributes:
        name: Its registry name.
        members: The verifiers, in the order in which ``first_decisive`` reads them.
        combine: ``first_decisive``, ``unanimous`` or a ``functools.partial`` of ``weighted``.
    """

    name: str
    members: tuple[Verifier, ...]
    combine: Combination = first_decisive

    @property
    def version(self) -> str:
        """The members' versions, so that a change of any changes it."""
        return "+".join(f"{m.name}-{m.version}" for m in self.members)

    async def verify(self, problem: Problem, steps: Sequence[str]) -> list[tuple[Verdict, ...]]:
        """One verdict for each step on which a member spoke."""
        by_member = [await member.verify(problem, steps) for member in self.members]
        found = [[v for verdicts in by_member for v in verdicts[i]] for i in range(len(steps))]
        return [(self.combine(verdicts),) if verdicts else () for verdicts in found]


def _last(verdicts: Sequence[Verdict]) -> Verdict:
    if not verdicts:
        raise ValueError("combining verdicts needs at least one; a step without verdicts has none to combine")
    unknowns = [v for v in verdicts if not decisive(v)]
    return unknowns[-1] if unknowns else verdicts[-1]


def _joined(verdicts: Sequence[Verdict], kind: VerdictKind, reason: Reason) -> Verdict:
    """A verdict on what several verifiers said, with all that they said as its evidence."""
    spans = {v.span for v in verdicts}
    return Verdict(
        kind=kind,
        verifier="+".join(v.verifier for v in verdicts),
        version="+".join(v.version for v in verdicts),
        reason=reason,
        evidence="; ".join(
            f"{v.verifier}: {v.kind}{f' ({v.evidence})' if v.evidence else ''}" for v in verdicts
        ),
        span=spans.pop() if len(spans) == 1 else None,
        seconds=sum(v.seconds for v in verdicts),
    )


def _logit(probability: float, owner: str) -> float:
    if not 0 < probability < 1:
        raise ValueError(
            f"{owner} has precision {probability}; it must lie in (0, 1): shrink a measured 0 or 1, for example "
            "to (right + 1) / (n + 2)"
        )
    return math.log(probability / (1 - probability))
