"""Everything Stepward raises on purpose.

::

    StepwardError
    ├── InputError          what the user handed in cannot be used as it is
    │   ├── ProblemFileError    a problem or solution file: names the file and the line
    │   ├── ConfigError         one message that lists every fault of a configuration
    │   └── FormatError         a foreign dataset row, or a text that does not fit its StepFormat
    ├── ModelError          a checkpoint, tokenizer or template does not fit its use
    ├── EngineError         a rollout engine failed; ``retryable`` says whether asking again can help
    │   └── ReplayExhausted     a log of rollouts has no undrawn rollout left at a prefix
    ├── StoreError          the dataset folder: another run's, locked, cut, or edited
    ├── PublishError        the Hub refused or an upload broke; calling again goes on where it stopped
    └── BudgetSpent         a token or time budget ended the run at a problem boundary (not a fault)

A message says what was being done, the offending value and its id, what would be accepted, and what to do
next. A fault that touches one rollout or one claim is not an exception but an ``Outcome`` or a ``Verdict``.
"""

from collections.abc import Sequence
from pathlib import Path


class StepwardError(Exception):
    """The root: ``except StepwardError`` catches all that Stepward raises on purpose."""


class InputError(StepwardError):
    """What the user handed in cannot be used as it is."""


class ProblemFileError(InputError):
    """A problem or solution file cannot be read.

    Args:
        path: The file.
        line: 1-based line number, or None where the format has no lines.
        fault: What is wrong and what would be accepted.
    """

    def __init__(self, path: str | Path, line: int | None, fault: str) -> None:
        place = f"{path}:{line}" if line is not None else str(path)
        super().__init__(f"{place}: {fault}")
        self.path, self.line, self.fault = str(path), line, fault


class ConfigError(InputError):
    """A configuration has faults; all of them are listed at once."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("the configuration cannot be used:\n" + "\n".join(f"  - {f}" for f in faults))
        self.faults = tuple(faults)


class FormatError(InputError):
    """A foreign dataset row, or a text that does not fit its StepFormat."""


class ModelError(StepwardError):
    """A checkpoint, tokenizer or template does not fit the use it is put to."""


class EngineError(StepwardError):
    """A rollout engine failed.

    Args:
        message: What was being done and what came back.
        retryable: Whether asking again with the same seed can help.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ReplayExhausted(EngineError):
    """A log of rollouts has no undrawn rollout left at a prefix."""


class StoreError(StepwardError):
    """The dataset folder belongs to another run, is locked, or a shard was cut or edited."""


class PublishError(StepwardError):
    """A check forbids publishing, the Hub refused, or an upload broke. Calling again goes on where it stopped.

    Args:
        message: What was being done and what came back.
        retryable: Whether calling again can help by itself: the Hub is down or busy, or a connection broke.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class BudgetSpent(StepwardError):
    """A token or time budget ended the run at a problem boundary. Not a fault: the run can be resumed."""
