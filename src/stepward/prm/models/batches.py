"""Encoded solutions -> tensors: padded one a row, or several packed into a row that cannot see each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stepward.prm.models.inputs import EncodedSolution


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of solutions.

    Attributes:
        input_ids: ``[rows, length]``; padding has id 0 and is never attended to.
        position_ids: ``[rows, length]``; starts at 0 in each solution.
        segments: ``[rows, length]``; 0 = padding, k = the row's k-th solution, from 1.
        in_solution: ``[rows, length]`` bool; True on step tokens, False on prompt and padding.
        packed: Whether a row can hold more than one solution.
        score_rows: ``[scores]`` row of each score position, in order of solution, then step.
        score_columns: ``[scores]`` its column.
        solution_of: ``[scores]`` index of its solution in the batch.
        starts: For each solution (row, first column, number of ids).
    """

    input_ids: Tensor
    position_ids: Tensor
    segments: Tensor
    in_solution: Tensor
    packed: bool
    score_rows: Tensor
    score_columns: Tensor
    solution_of: Tensor
    starts: tuple[tuple[int, int, int], ...]

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(
            self.input_ids.to(device), self.position_ids.to(device), self.segments.to(device),
            self.in_solution.to(device), self.packed, self.score_rows.to(device),
            self.score_columns.to(device), self.solution_of.to(device), self.starts,
        )  # fmt: skip


def pack_rows(lengths: Sequence[int], row_tokens: int) -> list[list[int]]:
    """First-fit decreasing: which solutions share a row of at most ``row_tokens`` ids.

    A solution longer than that has a row of its own. The same lengths give the same rows.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for row, left in enumerate(room):
            if lengths[index] <= left:
                rows[row].append(index)
                room[row] -= lengths[index]
                break
        else:
            rows.append([index])
            room.append(max(row_tokens, lengths[index]) - lengths[index])
    return rows


def make_batch(
    solutions: Sequence[EncodedSolution],
    *,
    row_tokens: int = 0,
    score_at: Sequence[Sequence[int]] | None = None,
) -> Batch:
    """Tensors of the solutions.

    Args:
        solutions: In the order of the result's scores.
        row_tokens: Pack into rows of this many ids; 0 = one solution a row.
        score_at: Positions within each solution where a score is read; the step ends where None.
    """
    lengths = [len(s.token_ids) for s in solutions]
    rows = pack_rows(lengths, row_tokens) if row_tokens else [[i] for i in range(len(solutions))]
    width = max(sum(lengths[i] for i in row) for row in rows)
    input_ids = torch.zeros(len(rows), width, dtype=torch.long)
    position_ids = torch.zeros_like(input_ids)
    segments = torch.zeros_like(input_ids)
    in_solution = torch.zeros(len(rows), width, dtype=torch.bool)
    starts: list[tuple[int, int, int]] = [(0, 0, 0)] * len(solutions)
    for r, row in enumerate(rows):
        column = 0
        for k, i in enumerate(row, start=1):
            end = column + lengths[i]
            input_ids[r, column:end] = torch.tensor(solutions[i].token_ids)
            position_ids[r, column:end] = torch.arange(lengths[i])
            segments[r, column:end] = k
            in_solution[r, column + solutions[i].prompt_length : end] = True
            starts[i] = (r, column, lengths[i])
            column = end
    places = score_at if score_at is not None else [s.step_ends for s in solutions]
    triples = [(starts[i][0], starts[i][1] + p, i) for i, ps in enumerate(places) for p in ps]
    score_rows, score_columns, solution_of = torch.tensor(triples, dtype=torch.long).reshape(-1, 3).unbind(1)
    return Batch(
        input_ids, position_ids, segments, in_solution, bool(row_tokens),
        score_rows.contiguous(), score_columns.contiguous(), solution_of.contiguous(), tuple(starts),
    )  # fmt: skip


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices grouped so that solutions of like length share a batch of at most ``batch_tokens`` padded ids."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        # Ascending order: the newcomer is the longest, so it sets the padded width.
        if groups and (len(groups[-1]) + 1) * lengths[index] <= batch_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
