"""Recoveries when labels are derived again: the same rule as in a labelling run, on the few rows that need it."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no type stubs.

from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from stepward.labeling.derived import Derived
from stepward.labeling.evidence import SolutionLabels
from stepward.labeling.recovery import is_self_correction, with_recoveries
from stepward.prm.dataset.contract import one_chunk
from stepward.prm.types import Counts, Estimate, Phase, Step, StepLabel


def with_recoveries_again(table: pa.Table, derived: Derived) -> Derived:
    """What was derived, with mistakes that thinking took back recorded as recovered.

    Args:
        table: The solutions, in the order of ``derived``.
        derived: Labels by a rule that knows no recovery.
    """
    steps, prefixes = one_chunk(table["steps"]), one_chunk(table["prefixes"])
    thinking = pc.equal(pc.struct_field(steps.flatten(), "phase"), Phase.THINK.value)
    if not pc.any(thinking).as_py():
        return derived
    wrong = np.flatnonzero(~derived.errors["first_error"].is_null().to_numpy())
    starts = np.concatenate([[0], np.cumsum(pc.list_value_length(steps).to_numpy())])
    labels, decided_by, p_first = (
        derived.steps[n].to_list() for n in ("label", "decided_by", "p_first_error")
    )
    first_errors = derived.errors["first_error"].to_list()
    for row in wrong.tolist():
        own = [Step(s["text"], phase=Phase(s["phase"])) for s in steps[row].as_py()]
        if not any(map(is_self_correction, own)):
            continue
        start = int(starts[row])
        places = range(start, start + len(own))
        estimates = tuple(
            Estimate(Counts(right=p["num_right"], wrong=p["num_wrong"])) for p in prefixes[row].as_py()
        )
        found = SolutionLabels(
            estimates,
            tuple(StepLabel(labels[i], p_first[i], decided_by[i]) for i in places),
            first_errors[row],
        )
        told = with_recoveries(own, found)
        first_errors[row] = told.first_error
        for i, label in zip(places, told.labels, strict=True):
            labels[i], p_first[i], decided_by[i] = label.label, label.p_first_error, label.decided_by
    new = {
        name: pl.Series(name, values, dtype=derived.steps.schema[name])
        for name, values in (("label", labels), ("decided_by", decided_by), ("p_first_error", p_first))
    }
    errors = pl.Series("first_error", first_errors, dtype=derived.errors.schema["first_error"])
    return replace(
        derived,
        steps=derived.steps.with_columns(**new),
        errors=derived.errors.with_columns(first_error=errors),
    )
