"""A discriminative model behind the ``RewardModel`` protocol: P(step is right) for each step, one pass a solution."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stepward.prm.errors import ModelError
from stepward.prm.models.batches import Batch, batches_by_length, batches_by_prompt, make_batch
from stepward.prm.models.discriminative import can_share_prompts, reference_logprobs
from stepward.prm.models.folder import LoadedPrm, PrmDescription
from stepward.prm.models.heads import as_head
from stepward.prm.models.inputs import EncodedSolution
from stepward.prm.types import Problem, Step


@dataclass(frozen=True, slots=True)
class DiscriminativeRewardModel:
    """Scores solutions with a model in memory. Made by ``load``.

    Attributes:
        name: Folder name or Hub id, and the head.
        prm: Model, input format and reference.
        batch_tokens: Most padded ids of one forward pass.
    """

    name: str
    prm: LoadedPrm = field(repr=False)
    batch_tokens: int = 8192

    @property
    def description(self) -> PrmDescription:
        """What the checkpoint says of itself: StepFormat, prompt, training, metric history."""
        return self.prm.description

    def score(
        self, problems: Sequence[Problem | str], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...]]:
        """P(step is right) for each step.

        Args:
            problems: One a solution; a plain text stands for a problem.
            solutions: Step texts without separators.

        Returns:
            For each solution as many floats in [0, 1] as it has steps.

        Raises:
            InputRefused: A solution has no steps, a blank one, or more ids than the model takes.
            ModelError: A score is not finite, or the two lists differ in length.
        """
        if len(problems) != len(solutions):
            raise ModelError(
                f"{len(problems)} problems for {len(solutions)} solutions; give one problem a solution"
            )
        return self.score_encoded(
            [self.prm.inputs.encode(as_problem(p), s) for p, s in zip(problems, solutions, strict=True)]
        )

    def score_steps(
        self, problems: Sequence[Problem], solutions: Sequence[Sequence[Step]], tokenizer_hash: str
    ) -> list[tuple[float, ...]]:
        """The same for steps with sampled ids, which are used where their tokenizer is the model's own."""
        encode = self.prm.inputs.encode
        return self.score_encoded(
            [encode(p, s, tokenizer_hash=tokenizer_hash) for p, s in zip(problems, solutions, strict=True)]
        )

    def score_encoded(self, encoded: Sequence[EncodedSolution]) -> list[tuple[float, ...]]:
        """Scores of solutions that are ids already."""
        return self._read(encoded, "probability")

    def deviation(
        self, problems: Sequence[Problem | str], solutions: Sequence[Sequence[str]]
    ) -> list[tuple[float, ...]]:
        """Standard deviation of each step's score, for heads that have one (beta, ensemble): its reliability.

        Raises:
            ModelError: The head gives no deviation.
        """
        if not hasattr(self.prm.model.head, "deviation"):
            raise ModelError(f"{self.name} gives no deviation; train with the beta or the ensemble head")
        encode = self.prm.inputs.encode
        return self._read(
            [encode(as_problem(p), s) for p, s in zip(problems, solutions, strict=True)], "deviation"
        )

    def _read(self, encoded: Sequence[EncodedSolution], reading: str) -> list[tuple[float, ...]]:
        # A policy writes many of its solutions more than once: equal ones are read once.
        place = {(e.token_ids, e.step_ends): i for i, e in reversed(list(enumerate(encoded)))}
        firsts = sorted(place.values())
        read = dict(zip(firsts, self._read_each([encoded[i] for i in firsts], reading), strict=True))
        return [read[place[e.token_ids, e.step_ends]] for e in encoded]

    @torch.inference_mode()
    def _read_each(self, encoded: Sequence[EncodedSolution], reading: str) -> list[tuple[float, ...]]:
        model = self.prm.model.eval()
        device = next(model.parameters()).device
        results: list[tuple[float, ...]] = [()] * len(encoded)
        models = [model.backbone] + ([] if self.prm.reference is None else [self.prm.reference])
        share = model.causal and all(can_share_prompts(m) for m in models)
        groups = (
            batches_by_prompt(encoded, self.batch_tokens)
            if share
            else batches_by_length([len(e.token_ids) for e in encoded], self.batch_tokens)
        )
        for group in groups:
            batch = make_batch([encoded[i] for i in group], share_prompts=share).to(device)
            raw = model(batch, self._logprobs(batch))
            values = getattr(as_head(model.head), reading)(raw).float().cpu()
            if not bool(values.isfinite().all()):
                row = int(batch.solution_of.cpu()[~values.isfinite()][0])
                raise ModelError(
                    f"{self.name} gave a score that is not finite for solution {group[row]}; the weights are damaged "
                    "or the type is too narrow: load with dtype='float32'"
                )
            numbers = values.tolist()
            position = 0
            for i in group:
                count = len(encoded[i].step_ends)
                results[i] = tuple(numbers[position : position + count])
                position += count
        return results

    def _logprobs(self, batch: Batch) -> Tensor | None:
        return None if self.prm.reference is None else reference_logprobs(self.prm.reference, batch)


def as_problem(problem: Problem | str) -> Problem:
    """A plain text as a problem."""
    return Problem(id="", statement=problem) if isinstance(problem, str) else problem
