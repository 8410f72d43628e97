"""Draws that are one draw: greedy decoding, or an engine that answers from a cache, whatever the seed.

Such copies are no independent evidence. A problem's draws are judged as a whole and from themselves alone: they are
degenerate where every prefix with several draws has one text, and either the sampler is greedy, or there are so
many and so long copies that a sampler at work would have left one of them.
"""

from collections.abc import Sequence

from stepward.prm.types import Outcome, Rollout, Sampler

COPIES = 8
"""Fewest draws beyond the first of their prefix, all copies, that tell of a cache where the sampler is not greedy."""
COPY_TOKENS = 32
"""Their least mean length: a confident policy often ends a solution in the same few words."""


def is_greedy(sampler: Sampler) -> bool:
    """Whether every seed gives the same continuation."""
    return sampler.temperature == 0 or sampler.top_k == 1


def is_degenerate(draws: Sequence[Sequence[Rollout]], sampler: Sampler) -> bool:
    """Whether the draws of a problem, grouped by the prefix that they continue, are copies.

    Draws that failed in the engine say nothing here.
    """
    served = [[r for r in at_prefix if r.outcome is not Outcome.ERROR] for at_prefix in draws]
    repeated = [at_prefix for at_prefix in served if len(at_prefix) > 1]
    if not repeated or any(len({r.text for r in at_prefix}) > 1 for at_prefix in repeated):
        return False
    if is_greedy(sampler):
        return True
    copies = [r for at_prefix in repeated for r in at_prefix[1:]]
    return len(copies) >= COPIES and sum(len(r.token_ids) for r in copies) >= COPY_TOKENS * len(copies)


def counted_once(draws: Sequence[Rollout]) -> list[Rollout]:
    """The first of each text, in order; draws that failed in the engine all stay."""
    seen: set[str] = set()
    kept: list[Rollout] = []
    for rollout in draws:
        if rollout.outcome is Outcome.ERROR or rollout.text not in seen:
            kept.append(rollout)
        if rollout.outcome is not Outcome.ERROR:
            seen.add(rollout.text)
    return kept
