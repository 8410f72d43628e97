"""Run-wide constants as a manifest holds them, and back."""

from collections.abc import Mapping
from typing import Any

from stepward.labeling.changepoint.hints import HintModel
from stepward.labeling.evidence import LabelingConstants
from stepward.prm.types import Allocation


def to_json(constants: LabelingConstants, allocation: Allocation) -> dict[str, Any]:
    """What the run reads of its constants: the price only where one is paid."""
    stored: dict[str, Any] = {}
    if allocation is Allocation.INFORMATION_GAIN:
        stored["price"] = constants.price
    for name, axes in (("axis_weights", constants.axis_weights), ("axis_points", constants.axis_points)):
        if axes:
            stored[name] = {k: list(v) for k, v in sorted(axes.items())}
    for name, values in (("precision", constants.precision), ("recall", constants.recall)):
        if values:
            stored[name] = dict(sorted(values.items()))
    if constants.hint is not None:
        hint = constants.hint
        stored["hint"] = {"mean_right": hint.mean_right, "mean_wrong": hint.mean_wrong, "sd": hint.sd}
    return stored


def from_json(stored: Mapping[str, Any]) -> LabelingConstants:
    """The inverse of ``to_json``; what is missing has its default."""
    return LabelingConstants(
        price=float(stored.get("price", LabelingConstants().price)),
        axis_weights={k: tuple(v) for k, v in stored.get("axis_weights", {}).items()},
        axis_points={k: tuple(v) for k, v in stored.get("axis_points", {}).items()},
        precision=dict(stored.get("precision", {})),
        recall=dict(stored.get("recall", {})),
        hint=HintModel(**stored["hint"]) if "hint" in stored else None,
    )
