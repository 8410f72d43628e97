"""What a discriminative reward model reads: prompt ids, then each step's ids, one score position a step.

Labels, training and scores all pass through ``InputFormat.encode``, so that under one tokenizer they see the same
ids. Nothing is cut silently: a solution over the limit is refused, or loses whole last steps that are counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stepward.prm.errors import FormatError
from stepward.prm.policy import Tokenizer
from stepward.prm.prompts import PromptTemplate, plain_template
from stepward.prm.steps import StepFormat
from stepward.prm.types import Message, Problem, Step, TokenIds

MAX_RENDERED = 10_000


class InputRefused(FormatError):
    """A solution that cannot be given to the model as it is; ``reason`` is a short word for reports."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class EncodedSolution:
    """A solution as ids.

    Attributes:
        token_ids: The prompt and the steps.
        prompt_length: Ids of the prompt.
        step_ends: For each kept step the index of its last id in ``token_ids``: where its score is read.
        steps_cut: Whole last steps left out to stay within the limit.
        ids_from: ``sampled`` or ``encoded``.
    """

    token_ids: TokenIds
    prompt_length: int
    step_ends: tuple[int, ...]
    steps_cut: int = 0
    ids_from: str = "encoded"


class SolutionEncoder(Protocol):
    """How a model's input is made: our own ``InputFormat``, or the layout of a published model."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The reward model's own."""
        ...

    @property
    def step_format(self) -> StepFormat:
        """How a solution is cut into steps."""
        ...

    def encode(
        self, problem: Problem, steps: Sequence[str] | Sequence[Step], *, tokenizer_hash: str | None = None
    ) -> EncodedSolution:
        """Ids and score positions of one solution."""
        ...


@dataclass(frozen=True, slots=True)
class InputFormat:
    """How a problem and the steps of a solution become ids.

    Attributes:
        tokenizer: The reward model's own.
        step_format: How steps are rendered.
        prompt: Template of the problem statement.
        max_tokens: Most ids of prompt and steps together; 0 = no limit.
    """

    tokenizer: Tokenizer
    step_format: StepFormat
    prompt: PromptTemplate = field(default_factory=plain_template)
    max_tokens: int = 0
    _rendered: dict[str | tuple[Message, ...], TokenIds] = field(
        default_factory=dict[str | tuple[Message, ...], TokenIds], repr=False, compare=False
    )

    def prompt_ids(self, problem: Problem) -> TokenIds:
        """Ids of the rendered prompt with one start token, or none where the model has none."""
        # Rendering costs more than encoding, and a problem comes with many solutions.
        key = problem.statement
        if key not in self._rendered:
            if len(self._rendered) >= MAX_RENDERED:
                self._rendered.clear()
            self._rendered[key] = self.prompt.render(problem, self.tokenizer).ids
        return self._rendered[key]

    def encode(
        self,
        problem: Problem,
        steps: Sequence[str] | Sequence[Step],
        *,
        tokenizer_hash: str | None = None,
        over_limit: str = "refuse",
    ) -> EncodedSolution:
        """Ids and score positions of one solution.

        Args:
            problem: Its statement goes through the prompt template.
            steps: Step texts, or steps with their sampled ids.
            tokenizer_hash: The hash of the tokenizer that the steps' ids belong to. They are used where it is this
                tokenizer's, else the texts are encoded step by step.
            over_limit: ``refuse``, or ``cut`` to keep the whole leading steps that fit and count the others.

        Returns:
            The encoded solution; ``step_ends`` is strictly increasing and as long as the steps that were kept.

        Raises:
            FormatError: No steps, a blank step, or more ids than ``max_tokens``.
        """
        if not steps:
            raise InputRefused(
                "no steps", f"a solution of problem {problem.id} has no steps; there is nothing to score"
            )
        sampled = tokenizer_hash == self.tokenizer.hash and all(
            isinstance(s, Step) and s.token_ids for s in steps
        )
        if sampled:
            pieces = self.step_format.scored_ids([s for s in steps if isinstance(s, Step)], self.tokenizer)
        else:
            texts = [s.text if isinstance(s, Step) else s for s in steps]
            if blank := [i for i, text in enumerate(texts) if not text.strip()]:
                raise InputRefused(
                    "blank step", f"step {blank[0]} of a solution of problem {problem.id} is blank; drop it"
                )
            pieces = self.step_format.encode_steps(texts, self.tokenizer)
        prompt = self.prompt_ids(problem)
        ids, ends = list(prompt), list[int]()
        for piece in pieces:
            if self.max_tokens and len(ids) + len(piece) > self.max_tokens:
                break
            ids += piece
            ends.append(len(ids) - 1)
        cut = len(pieces) - len(ends)
        if cut and (over_limit != "cut" or not ends):
            total = len(prompt) + sum(map(len, pieces))
            raise InputRefused(
                "over the token limit" if ends else "no complete step",
                f"a solution of problem {problem.id} has {total} ids ({len(prompt)} of the prompt) and the model "
                f"takes {self.max_tokens}" + ("" if ends else ": no complete step fits"),
            )
        return EncodedSolution(
            tuple(ids), len(prompt), tuple(ends), cut, ids_from="sampled" if sampled else "encoded"
        )
