"""Named faults of what an evaluation is handed: they are branches of ``InputError``.

::

    InputError
    └── EvaluationError         scores, predictions or items cannot be evaluated as they are
        ├── BenchmarkFileError      a benchmark row breaks its format: names file, line and field
        ├── MissingItemsError       items without a score or prediction
        ├── ExtraItemsError         scores or predictions of items that the benchmark does not have
        ├── DoubledItemsError       the same id twice
        ├── StepCountError          as many scores as steps is the rule; another count came
        ├── ScoreAfterErrorError    scores said to end at the first error go on after it
        ├── ScoreRangeError         a score is not a number, not finite or not in [0, 1]
        ├── EmptySideError          a threshold cannot be chosen without both erroneous and correct items
        ├── TunedOnTestError        the threshold or the aggregation saw the items that are to be scored
        └── DifferentItemsError     two results to be compared are not about the same items
"""

from collections.abc import Sequence

from stepward.prm.errors import InputError

_SHOWN = 5


class EvaluationError(InputError):
    """Scores, predictions or items cannot be evaluated as they are."""


class BenchmarkFileError(EvaluationError):
    """A benchmark row breaks its format.

    Args:
        path: The file.
        line: 1-based line number.
        fault: What is wrong and what would be accepted.
    """

    def __init__(self, path: str, line: int, fault: str) -> None:
        super().__init__(f"{path}:{line}: {fault}")
        self.path, self.line, self.fault = path, line, fault


class _ItemsError(EvaluationError):
    """Faults that name the items concerned; ``ids`` has them all, the message the first few."""

    def __init__(self, what: str, ids: Sequence[str], remedy: str) -> None:
        shown = ", ".join(ids[:_SHOWN]) + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")
        super().__init__(f"{what}: {shown}; {remedy}")
        self.ids = tuple(ids)


class MissingItemsError(_ItemsError):
    """Items without a score or prediction: a mean over the rest would be another benchmark."""


class ExtraItemsError(_ItemsError):
    """Scores or predictions of items that the benchmark does not have."""


class DoubledItemsError(_ItemsError):
    """The same id twice: which of the two counts is not for the program to guess."""


class DifferentItemsError(_ItemsError):
    """Two results to be compared are not about the same items."""


class StepCountError(EvaluationError):
    """An item has another number of scores than steps."""


class ScoreAfterErrorError(EvaluationError):
    """Scores said to end at the first error go on after it."""


class ScoreRangeError(EvaluationError):
    """A score is not a number, not finite or not in [0, 1]."""


class EmptySideError(EvaluationError):
    """A threshold cannot be chosen without both erroneous and correct items."""


class TunedOnTestError(EvaluationError):
    """The threshold or the aggregation saw the items that are to be scored."""
