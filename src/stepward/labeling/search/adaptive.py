"""Adaptive compute allocation by a reward model that knows its own doubt: BetaPRM (ACA).

A candidate's score is mean_t(mu_t - .5 sigma_t), its doubt u = mean_t sigma_t, and its bounds are score -+ .3 u. While
some rival's upper bound is above the best candidate's lower bound, the rival of highest upper bound is taken: it is cut
at its first step with mu - c sigma < p_bad, else at its most uncertain step with mathematics in it, and ``more``
continuations are drawn there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.registry import SearchMethod, at_least, register_search
from stepward.labeling.search.revise import step_start
from stepward.labeling.tree import ROOT

CAUTION = 0.5
BOUND = 0.3


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate with mean and standard deviation of each step's score."""

    node: int
    mu: tuple[float, ...]
    sigma: tuple[float, ...]

    @property
    def score(self) -> float:
        """mean_t(mu_t - .5 sigma_t)."""
        return float(np.mean([m - CAUTION * s for m, s in zip(self.mu, self.sigma, strict=True)]))

    @property
    def lower(self) -> float:
        """score - .3 u."""
        return self.score - BOUND * float(np.mean(self.sigma))

    @property
    def upper(self) -> float:
        """score + .3 u."""
        return self.score + BOUND * float(np.mean(self.sigma))


@register_search("aca")
def aca(
    *, first: int = 4, total: int = 16, more: int = 4, p_bad: float = 0.5, c_cut: float = 2.0,
    precision: float = 8.0,
) -> SearchMethod:  # fmt: skip
    """Adaptive allocation.

    Args:
        first: Solutions drawn at the start, n_0.
        total: Most solutions of a pass.
        more: Continuations drawn at a cut, m.
        p_bad: Below it a cautious score marks a step as bad.
        c_cut: How many standard deviations that caution is.
        precision: kappa, for reward models without a deviation of their own: the score is then taken as the mean of
            a Beta distribution of this precision, sigma = sqrt(mu (1 - mu) / (kappa + 1)).
    """
    at_least(1, first=first, total=total, more=more)

    async def one_pass(x: Exploration) -> None:
        x.frontier = []
        ends = await x.complete([ROOT] * first)
        x.frontier = ends
        judged = await _judge(x, ends, precision)
        while len(ends) < total and judged:
            rival = contender(judged)
            if rival is None:
                break
            cut = step_start(x, rival.node, cut_at(x, rival, p_bad, c_cut))
            new = await x.complete([cut] * min(more, total - len(ends)))
            if not new:
                break
            ends += new
            known = {j.node for j in judged}
            judged += await _judge(x, [n for n in new if n not in known], precision)
        x.frontier = []
        x.found += [n for n in ends if x.tree.terminal[n]]

    return one_pass


def contender(judged: Sequence[Judged]) -> Judged | None:
    """The rival to expand: the highest upper bound at or above the best one's lower bound; None = it is decided."""
    best = max(judged, key=lambda j: j.score)
    rivals = [j for j in judged if j is not best and j.upper >= best.lower]
    return max(rivals, key=lambda j: j.upper, default=None)


def cut_at(x: Exploration, judged: Judged, p_bad: float, c_cut: float) -> int:
    """The step that is drawn again."""
    for t, (mu, sigma) in enumerate(zip(judged.mu, judged.sigma, strict=True)):
        if mu - c_cut * sigma < p_bad:
            return t
    texts = x.step_texts(judged.node)
    mathematical = [t for t, text in enumerate(texts) if any(c.isdigit() for c in text)]
    return max(mathematical or range(len(texts)), key=lambda t: judged.sigma[t])


async def _judge(x: Exploration, nodes: Sequence[int], precision: float) -> list[Judged]:
    distinct = [n for n in dict.fromkeys(nodes) if x.step_texts(n)]
    mus = await x.score(distinct)
    sigmas = (
        await x.deviations(distinct)
        if x.doubts is not None
        else [tuple(math.sqrt(m * (1 - m) / (precision + 1)) for m in mu) for mu in mus]
    )
    return [Judged(n, m, s) for n, m, s in zip(distinct, mus, sigmas, strict=True)]
