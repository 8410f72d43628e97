"""What labelling again gives, however it was derived, and what may be taken back from it."""

from dataclasses import dataclass, replace

import polars as pl


@dataclass(frozen=True, slots=True)
class Derived:
    """Labels of a table of S solutions, in its order.

    Attributes:
        prefixes: One row a prefix: ``value``, ``low``, ``high``.
        steps: One row a step: ``solution`` (row of the table), ``step``, ``label``, ``decided_by``,
            ``p_first_error``.
        errors: One row a solution: ``first_error`` and whether that much is ``known``.
    """

    prefixes: pl.DataFrame
    steps: pl.DataFrame
    errors: pl.DataFrame

    def without(self, keep: pl.Series) -> "Derived":
        """Nothing is said of the solutions where ``keep`` is False; the values of their prefixes stay."""
        if keep.all():
            return self
        return replace(
            self,
            steps=_silenced(self.steps, keep.gather(self.steps["solution"])),
            errors=self.errors.with_columns(
                first_error=pl.when(keep).then("first_error"), known=pl.col("known") & keep
            ),
        )

    def up_to_first_error(self) -> "Derived":
        """Labels after the first error become unknown (Qwen)."""
        first = self.errors["first_error"].gather(self.steps["solution"])
        before = self.steps.select(first.is_null() | (pl.col("step") <= first)).to_series()
        return replace(self, steps=_silenced(self.steps, before, keep_posterior=True))


def _silenced(steps: pl.DataFrame, keep: pl.Series, *, keep_posterior: bool = False) -> pl.DataFrame:
    columns = {
        "label": pl.when(keep).then("label"),
        "decided_by": pl.when(keep).then("decided_by").otherwise(pl.lit("")),
    }
    if not keep_posterior:
        columns["p_first_error"] = pl.when(keep).then("p_first_error")
    return steps.with_columns(**columns)
