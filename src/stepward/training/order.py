"""Which solutions stand together: effective batches of an epoch, and the forward passes of a batch.

Both are functions of their arguments alone: no iterator holds hidden state, so a killed run goes on where it stood.
"""

from collections.abc import Sequence

import numpy as np

from stepward.prm.models.batches import batches_by_length
from stepward.prm.seeds import derive_seed
from stepward.training.collate import Example

LENGTH_POOL = 16


def batch_order(
    lengths: Sequence[int], batch_size: int, seed: int, epoch: int, groups: Sequence[str] | None = None
) -> list[list[int]]:
    """Effective batches of one epoch.

    Shuffled, then sorted by length within pools of ``LENGTH_POOL`` batches to save padding, then the batches
    shuffled again. With ``groups`` all members of a group share a batch, whole groups are shuffled and a batch
    ends with the group that fills it.
    """
    draw = np.random.Generator(np.random.PCG64(derive_seed(seed, "order", epoch)))
    if groups is not None:
        members: dict[str, list[int]] = {}
        for i, g in enumerate(groups):
            members.setdefault(g, []).append(i)
        names = list(members)
        batches: list[list[int]] = [[]]
        for k in _pooled([max(lengths[i] for i in members[n]) for n in names], batch_size, draw):
            if len(batches[-1]) >= batch_size:
                batches.append([])
            batches[-1] += members[names[k]]
        return [batches[k] for k in draw.permutation(len(batches))]
    ordered = _pooled(lengths, batch_size, draw)
    cut = [ordered[i : i + batch_size] for i in range(0, len(ordered), batch_size)]
    return [cut[k] for k in draw.permutation(len(cut))]


def micro_batches(
    examples: Sequence[Example], most_tokens: int, *, packed: bool, by_problem: bool
) -> list[list[int]]:
    """An effective batch cut into forward passes of at most ``most_tokens`` ids; indices into ``examples``.

    Args:
        examples: The effective batch.
        most_tokens: Padded ids, or ids alone where rows are packed.
        packed: Whether rows are packed and hold no padding to speak of.
        by_problem: Whether the solutions of a problem stay together.
    """
    lengths = [len(e.encoded.token_ids) for e in examples]
    if by_problem:
        members: dict[str, list[int]] = {}
        for i, e in enumerate(examples):
            members.setdefault(e.problem_id, []).append(i)
        result: list[list[int]] = [[]]
        for group in members.values():
            longest = max(lengths[i] for i in [*result[-1], *group])
            if result[-1] and longest * (len(result[-1]) + len(group)) > most_tokens:
                result.append([])
            result[-1] += group
        return result
    return _by_total(lengths, most_tokens) if packed else batches_by_length(lengths, most_tokens)


def _pooled(lengths: Sequence[int], batch_size: int, draw: np.random.Generator) -> list[int]:
    """A random order in which neighbours are of like length."""
    order = draw.permutation(len(lengths)).tolist()
    pool = batch_size * LENGTH_POOL
    ordered: list[int] = []
    for start in range(0, len(order), pool):
        ordered += sorted(order[start : start + pool], key=lambda i: lengths[i])
    return ordered


def _by_total(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Cut by the sum of ids."""
    result: list[list[int]] = [[]]
    room = most
    for i, n in enumerate(lengths):
        if n > room and result[-1]:
            result.append([])
            room = most
        result[-1].append(i)
        room -= n
    return result
