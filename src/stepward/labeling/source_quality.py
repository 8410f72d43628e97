"""How far tools, judge and reward model can be trusted: measured on labelled solutions, or learned from a pilot.

Precision is P(the step is the first wrong one | flagged), recall P(flagged | the step is the first wrong one and the
source speaks). Steps after the first error say nothing of either and are left out. Every rate starts from
PSEUDO_STEPS steps at the default, so that a handful of steps cannot make a source infallible.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepward.labeling.changepoint.hints import HintModel, fit_hint
from stepward.labeling.changepoint.step_evidence import DEFAULT_PRECISION, DEFAULT_RECALL, WRONG_STEP_RATE
from stepward.labeling.dawid_skene import dawid_skene
from stepward.prm.errors import InputError
from stepward.prm.types import LabeledSolution, Verdict, VerdictKind

PSEUDO_STEPS = 4.0
HIGHEST, LOWEST = 0.99, 0.02
_EDGE = 1e-4  # scores are stored with 4 decimals
RETURNS, HINT = "returns", "hint"


@dataclass(frozen=True, slots=True)
class Quality:
    """Precision and recall by source, each in [LOWEST, HIGHEST].

    Attributes:
        precision: By verifier name.
        recall: By verifier name.
        steps: Steps that each source spoke on.
    """

    precision: Mapping[str, float]
    recall: Mapping[str, float]
    steps: Mapping[str, int]


def measured(
    verdicts: Sequence[Sequence[tuple[Verdict, ...]]], first_errors: Sequence[int | None]
) -> Quality:
    """Precision and recall on labelled solutions.

    Args:
        verdicts: For each solution the verdicts on each step.
        first_errors: Index of each one's first wrong step, None = every step is right.
    """
    flags: dict[str, float] = {}
    hits: dict[str, float] = {}
    errors: dict[str, float] = {}
    spoke: dict[str, int] = {}
    for steps, error in zip(verdicts, first_errors, strict=True):
        for t, at_step in enumerate(steps if error is None else steps[: error + 1]):
            for name, flagged in votes_of(at_step).items():
                spoke[name] = spoke.get(name, 0) + 1
                errors[name] = errors.get(name, 0) + (t == error)
                flags[name] = flags.get(name, 0) + flagged
                hits[name] = hits.get(name, 0) + (flagged and t == error)
    return Quality(
        {n: _rate(hits[n], flags[n], DEFAULT_PRECISION) for n in sorted(spoke)},
        {n: _rate(hits[n], errors[n], DEFAULT_RECALL) for n in sorted(spoke)},
        dict(sorted(spoke.items())),
    )


def learned(rows: Sequence[LabeledSolution]) -> Quality:
    """Precision and recall without any truth: Dawid-Skene over returns, tools, judge and reward model.

    Returns are the pilot's labels from rollouts alone; a reward model votes wrong below 1/2. Two sources cannot tell
    which of them errs, so three are needed.

    Raises:
        InputError: Fewer than three sources spoke.
    """
    names = sorted({v.verifier for row in rows for x in row.labels for v in x.verdicts})
    names = [RETURNS, *names, *([HINT] if any(x.hint is not None for r in rows for x in r.labels) else [])]
    votes: list[list[int | None]] = []
    for row in rows:
        last = len(row.labels) if row.first_error is None else row.first_error + 1
        for t, label in enumerate(row.labels[:last]):
            said: dict[str, int | None] = dict(votes_of(label.verdicts).items())
            said[RETURNS] = int(t == row.first_error) if label.p_first_error is not None else None
            said[HINT] = None if label.hint is None else int(label.hint < 0.5)
            votes.append([said.get(name) for name in names])
    heard = [i for i in range(len(names)) if any(v[i] is not None for v in votes)]
    if len(heard) < 3:
        raise InputError(
            f"learning verifier quality: only {', '.join(names[i] for i in heard) or 'nobody'} spoke on the pilot's "
            f"{len(votes)} steps; Dawid-Skene needs three sources (returns and two of tools, judge, hint): add one, "
            "or give a labelled file"
        )
    found = dawid_skene([[v[i] for i in heard] for v in votes])
    tools = [(k, i) for k, i in enumerate(heard) if names[i] not in (RETURNS, HINT)]
    counts = {names[i]: sum(v[i] is not None for v in votes) for _, i in tools}
    weight = {n: c / (c + PSEUDO_STEPS) for n, c in counts.items()}

    def shrunk(values: Sequence[float], default: float) -> dict[str, float]:
        return {
            names[i]: _clipped(weight[names[i]] * values[k] + (1 - weight[names[i]]) * default)
            for k, i in tools
        }

    precision, recall = found.precision.tolist(), found.flags_wrong.tolist()
    return Quality(shrunk(precision, DEFAULT_PRECISION), shrunk(recall, DEFAULT_RECALL), counts)


def fitted_hint(rows: Sequence[LabeledSolution]) -> HintModel | None:
    """How a reward model's logits speak of steps, from a pilot's labels; None where they hold too few errors.

    The labels must not have read the scores, and the reward model must not have been trained on these problems.
    """
    scored = [r for r in rows if r.labels and all(x.hint is not None for x in r.labels)]
    scored = [r for r in scored if all(x.p_first_error is not None for x in r.labels)]
    if not scored:
        return None
    width = max(len(r.labels) for r in scored)
    scores = np.full((len(scored), width), np.nan)
    p_right = np.zeros((len(scored), width + 1))
    for i, row in enumerate(scored):
        scores[i, : len(row.labels)] = _logits([x.hint or 0.0 for x in row.labels])
        left = 1.0 - np.cumsum([x.p_first_error or 0.0 for x in row.labels])
        p_right[i, : len(row.labels) + 1] = np.clip([1.0, *left], 0.0, 1.0)
    try:
        model = fit_hint(scores, p_right, np.array([len(r.labels) for r in scored]))
    except ValueError:
        return None
    # A model that cannot tell right from wrong, or does so backwards, is no hint.
    return model if model.sd > 0 and model.mean_right > model.mean_wrong else None


def read_through(hint: HintModel, scores: Sequence[float]) -> tuple[float, ...]:
    """The P(right) whose odds over the prior odds are the model's likelihood ratio: what the posterior reads."""
    ratio = hint.ratio(_logits(scores))
    odds = np.asarray(ratio) * WRONG_STEP_RATE / (1 - WRONG_STEP_RATE)
    return tuple(float(p) for p in 1 / (1 + odds))


def votes_of(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Each source's vote on a step: 1 where it refutes a claim, 0 where it only supports; silent ones are absent."""
    votes: dict[str, int] = {}
    for verdict in verdicts:
        if verdict.kind is not VerdictKind.UNKNOWN:
            flagged = int(verdict.kind is VerdictKind.REFUTED)
            votes[verdict.verifier] = max(votes.get(verdict.verifier, 0), flagged)
    return votes


def _logits(scores: Sequence[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.floating]]:
    p = np.clip(np.asarray(scores, np.float64), _EDGE, 1 - _EDGE)
    return np.log(p) - np.log1p(-p)


def _rate(hits: float, trials: float, default: float) -> float:
    return _clipped((hits + PSEUDO_STEPS * default) / (trials + PSEUDO_STEPS))


def _clipped(rate: float) -> float:
    # Two digits: the manifest should be readable, and a pilot gives no more.
    return float(f"{min(max(rate, LOWEST), HIGHEST):.3g}")
