"""Metrics on the validation split after each epoch: step accuracy, first-error F1 and its threshold."""

import math
from collections.abc import Sequence
from typing import Any

from stepward.prm.evaluation.errors import EmptySideError
from stepward.prm.evaluation.thresholds import choose_threshold
from stepward.prm.models.reward_model import DiscriminativeRewardModel
from stepward.training.collate import Example


def evaluate(model: DiscriminativeRewardModel, examples: Sequence[Example]) -> dict[str, Any]:
    """Step accuracy at .5, cross-entropy, ProcessBench F1 against the rows' own labels and its best threshold.

    F1 is in sample (the threshold is chosen on the same rows): a guide while training, not a result.

    Args:
        model: With the weights to evaluate.
        examples: Of the validation split; empty gives no metrics. ``skipped`` counts those without a known target.
    """
    if not examples:
        return {}
    scores = model.score_encoded([e.encoded for e in examples])
    pairs = [
        (s, t) for row, e in zip(scores, examples, strict=True) for s, t in zip(row, e.targets, strict=True)
        if not math.isnan(t)
    ]  # fmt: skip
    # A row without any known target has no loss: it is left out of the means, and said to be.
    skipped = sum(not e.labelled for e in examples)
    metrics: dict[str, Any] = {"skipped": skipped} if skipped else {}
    if pairs:
        metrics["step_accuracy"] = sum((s >= 0.5) == (t >= 0.5) for s, t in pairs) / len(pairs)
        metrics["cross_entropy"] = sum(_cross_entropy(s, t) for s, t in pairs) / len(pairs)
    decided = [i for i, e in enumerate(examples) if e.decided]
    try:
        best = choose_threshold(
            [scores[i] for i in decided], [examples[i].first_error for i in decided], source="validation"
        )
    except EmptySideError:
        return metrics
    return {**metrics, "f1": best.f1, "threshold": best.value}


def _cross_entropy(score: float, target: float) -> float:
    p = min(max(score, 1e-7), 1 - 1e-7)
    return -(target * math.log(p) + (1 - target) * math.log(1 - p))
