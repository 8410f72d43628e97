"""Protocols that join the packages: who samples, who scores, who executes.

Whatever needs an engine takes it as an argument of one of these types; only ``flows.build`` joins them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stepward.prm.types import PolicyInfo, Prefix, Problem, Rollout, Sampler, TokenIds


class Tokenizer(Protocol):
    """What Stepward asks of a tokenizer. ``prm.tokenizer`` has the implementations."""

    @property
    def hash(self) -> str:
        """Hash of vocabulary and rules: equal hashes mean equal ids for equal text."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The start token, or None where the model has none."""
        ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a completion."""
        ...

    def encode(self, text: str) -> TokenIds:
        """Ids of the text, no special tokens added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; end tokens are left out, other special tokens kept."""
        ...

    def offsets(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Start of each id's text, as a character index into ``decode(ids)``; length = len(ids).

        An id that begins in the middle of a character (a byte of a multi-byte one) has that character's index.
        """
        ...


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One rollout to draw. ``seed`` belongs to this draw alone; there is no n > 1."""

    prefix: Prefix
    sampler: Sampler
    seed: int
    index: int = 0
    want_logprobs: bool = False


@runtime_checkable
class Policy(Protocol):
    """Samples continuations of a prefix given as token ids.

    An engine batches what is asked of it at the same time and applies back-pressure: ``sample`` may wait.
    The same request gives the same rollout on engines that say so (``deterministic``), whatever else is in
    flight. Cancelling the awaiting task frees the engine's place.
    """

    @property
    def info(self) -> PolicyInfo:
        """Name, revision and engine; sampler and prompt hash are filled in by the labelling."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer whose ids are the state."""
        ...

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and completion together."""
        ...

    @property
    def deterministic(self) -> bool:
        """True where the same request gives the same ids for any batch, order and concurrency."""
        ...

    async def sample(self, request: SampleRequest) -> Rollout:
        """Draw one rollout, whole.

        Returns:
            The rollout, not graded. A request that the engine could not serve after its retries comes back
            with outcome ``ERROR`` and the message: it is never "wrong" and never an exception.

        Raises:
            EngineError: Where no request can succeed (engine gone, wrong model, prompt over the context).
        """
        ...

    async def loglikelihood(self, prefix: Prefix, continuation: TokenIds) -> tuple[float, ...]:
        """Log-probability (natural log, temperature 1) of each id of ``continuation`` after ``prefix``."""
        ...

    async def close(self) -> None:
        """Free the engine."""
        ...


@runtime_checkable
class RewardModel(Protocol):
    """Scores each step of a solution. One forward pass a solution, not one a step.

    The same object serves best-of-N, search and evaluation, so that a score means the same everywhere.
    """

    @property
    def name(self) -> str:
        """Hub id or folder name and the head, for reports."""
        ...

    def score(
        self, problems: Sequence[Problem], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...]]:
        """P(step is right) for each step.

        Args:
            problems: One problem a solution (repeat a problem for several solutions).
            solutions: Step texts without separators.

        Returns:
            For each solution as many floats in [0, 1] as it has steps.

        Raises:
            FormatError: A solution cannot be encoded so that each step has its own position.
            ModelError: A score is not finite.
        """
        ...


@dataclass(frozen=True, slots=True)
class Execution:
    """What became of a program: output and how it ended (``ok``, ``error``, ``timeout``, ``killed``)."""

    status: str
    stdout: str
    stderr: str
    seconds: float


@runtime_checkable
class Executor(Protocol):
    """Runs untrusted code where it can do no harm."""

    async def run(self, code: str, *, stdin: str = "", timeout_s: float = 5.0) -> Execution:
        """Run a Python program to its end or its deadline."""
        ...
