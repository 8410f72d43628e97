"""Encoded solutions -> tensors: padded one a row, packed into rows, or several behind one shared prompt.

However a batch is laid out, no solution sees another one, and the numbers are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from stepward.prm.models.inputs import EncodedSolution
from stepward.prm.types import TokenIds

PROMPT = -1
MAX_SHARED_ROW = 512


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of solutions.

    Attributes:
        input_ids: ``[rows, length]``; padding has id 0 and is never attended to.
        position_ids: ``[rows, length]``; starts at 0 in each solution, and goes on after a shared prompt.
        segments: ``[rows, length]``; 0 = padding, k = the row's k-th solution, from 1; ``PROMPT`` = a prompt that all
            solutions of the row share.
        previous: ``[rows, length]`` the column of the id before, which predicts the one here.
        in_solution: ``[rows, length]`` bool; True on step tokens, False on prompt and padding.
        plain: Whether each row is one solution, so that a causal model needs no mask.
        score_rows: ``[scores]`` row of each score position, in order of solution, then step.
        score_columns: ``[scores]`` its column.
        solution_of: ``[scores]`` index of its solution in the batch.
        starts: For each solution (row, column of its first step id, ids of its prompt, ids of its steps).
    """

    input_ids: Tensor
    position_ids: Tensor
    segments: Tensor
    previous: Tensor
    in_solution: Tensor
    plain: bool
    score_rows: Tensor
    score_columns: Tensor
    solution_of: Tensor
    starts: tuple[tuple[int, int, int, int], ...]

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in given.items()}
        return Batch(**moved)


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
    share_prompts: bool = False,
    score_at: Sequence[Sequence[int]] | None = None,
) -> Batch:
    """Tensors of the solutions.

    Args:
        solutions: In the order of the result's scores.
        row_tokens: Pack into rows of this many ids; 0 = one solution a row.
        share_prompts: Neighbours with the same prompt share rows in which the prompt stands once, each of at most
            ``MAX_SHARED_ROW`` ids; for causal models alone. ``row_tokens`` then has no say.
        score_at: Positions within each solution where a score is read; the step ends where None.
    """
    rows = _layout(solutions, row_tokens, share_prompts)
    width = max(sum(len(part) for _, part, _ in row) for row in rows)
    shape = (len(rows), width)
    input_ids, position_ids, segments = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    previous = torch.zeros(shape, dtype=torch.long)
    in_solution = torch.zeros(shape, dtype=torch.bool)
    starts: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)] * len(solutions)
    for r, row in enumerate(rows):
        column = prompt_end = 0
        segment = 0
        for owner, part, offset in row:
            end = column + len(part)
            segment += owner is not None
            input_ids[r, column:end] = torch.tensor(part)
            position_ids[r, column:end] = torch.arange(offset, offset + len(part))
            segments[r, column:end] = segment if owner is not None else PROMPT
            previous[r, column:end] = torch.arange(column - 1, end - 1).clamp(min=0)
            if owner is None:
                prompt_end = end
            else:
                prompt = solutions[owner].prompt_length
                first = column + prompt - offset
                if offset and prompt_end:
                    previous[r, column] = prompt_end - 1
                in_solution[r, first:end] = True
                starts[owner] = (r, first, prompt, end - first)
            column = end
    places = score_at if score_at is not None else [s.step_ends for s in solutions]
    triples = [(starts[i][0], starts[i][1] + p - starts[i][2], i) for i, ps in enumerate(places) for p in ps]
    score_rows, score_columns, solution_of = torch.tensor(triples, dtype=torch.long).reshape(-1, 3).unbind(1)
    plain = all(len(row) == 1 for row in rows)
    return Batch(
        input_ids, position_ids, segments, previous, in_solution, plain,
        score_rows.contiguous(), score_columns.contiguous(), solution_of.contiguous(), tuple(starts),
    )  # fmt: skip


_Part = tuple[int | None, Sequence[int], int]
"""Whose ids (None = a shared prompt's), the ids, and the position of the first."""


def _layout(solutions: Sequence[EncodedSolution], row_tokens: int, share_prompts: bool) -> list[list[_Part]]:
    """What stands in each row, from left to right."""
    whole: list[_Part] = [(i, s.token_ids, 0) for i, s in enumerate(solutions)]
    if not share_prompts:
        lengths = [len(s.token_ids) for s in solutions]
        rows = pack_rows(lengths, row_tokens) if row_tokens else [[i] for i in range(len(solutions))]
        return [[whole[i] for i in row] for row in rows]
    result: list[list[_Part]] = []
    for prompt, group in groupby(range(len(solutions)), lambda i: prompt_ids(solutions[i])):
        for members in rows_behind(prompt, list(group), solutions):
            if len(members) == 1 or not prompt:
                result += [[whole[i]] for i in members]
            else:
                own: list[_Part] = [(i, solutions[i].token_ids[len(prompt) :], len(prompt)) for i in members]
                result.append([(None, prompt, 0), *own])
    return result


def rows_behind(
    prompt: TokenIds, members: Sequence[int], solutions: Sequence[EncodedSolution]
) -> list[list[int]]:
    """Which solutions of one prompt share a row.

    Attention over a row grows with its square: short rows, many of them.
    """
    rows: list[list[int]] = []
    size = 0
    for i in members:
        own = len(solutions[i].token_ids) - len(prompt)
        if not rows or size + own > max(MAX_SHARED_ROW, len(prompt) + own):
            rows.append([])
            size = len(prompt)
        rows[-1].append(i)
        size += own
    return rows


def prompt_ids(solution: EncodedSolution) -> tuple[int, ...]:
    """The ids that a solution shares with others of its problem."""
    return solution.token_ids[: solution.prompt_length]


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


def batches_by_prompt(solutions: Sequence[EncodedSolution], batch_tokens: int) -> list[list[int]]:
    """Like ``batches_by_length`` for shared prompts: solutions of one prompt stand next to each other.

    A prompt with more solutions than fit is given several rows. Solutions that share with none are batched by
    themselves: among rows that need a mask they would lose the kernel for causal attention, which is much faster.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, solution in enumerate(solutions):
        groups.setdefault(prompt_ids(solution), []).append(i)
    rows = [row for prompt, members in groups.items() for row in rows_behind(prompt, members, solutions)]
    batches: list[list[int]] = []
    for part in ([r for r in rows if len(r) == 1], [r for r in rows if len(r) > 1]):
        sizes = [
            sum(len(solutions[i].token_ids) for i in r) - (len(r) - 1) * solutions[r[0]].prompt_length
            for r in part
        ]
        batches += [[i for k in batch for i in part[k]] for batch in batches_by_length(sizes, batch_tokens)]
    return batches
