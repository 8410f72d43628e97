"""Particle filtering: Puri et al. 2025, arXiv 2502.01618.

Each of N particles draws its next step; then N particles are drawn anew with weights softmax(w / T), w the logit of
the reward model's score of the last step. Ended particles keep their score and take part in the resampling.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepward.labeling.search.exploration import Exploration
from stepward.labeling.search.registry import SearchMethod, at_least, register_search
from stepward.labeling.tree import ROOT
from stepward.prm.seeds import derive_seed

_FLOOR = 1e-6


@register_search("particles")
def particles(*, particles: int = 4, temperature: float = 1.0) -> SearchMethod:
    """A particle filter over steps.

    Args:
        particles: N.
        temperature: T of the softmax; a large one resamples evenly.
    """
    at_least(1, particles=particles)
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0")

    async def one_pass(x: Exploration) -> None:
        rng = np.random.default_rng(derive_seed(x.seed, x.problem.id, "particles", x.passes))
        nodes = [ROOT] * particles
        x.frontier = nodes
        while moving := [i for i, n in enumerate(nodes) if x.is_open(n)]:
            drawn = await x.expand([(nodes[i], 1) for i in moving])
            if not any(drawn):
                break
            nodes = list(nodes)
            for i, children in zip(moving, drawn, strict=True):
                nodes[i] = children[0] if children else nodes[i]
            x.frontier = nodes
            # Particles in one state need no weights; the last ones vote by their scores and are not resampled too.
            if len(set(nodes)) > 1 and any(x.is_open(n) for n in nodes):
                weights = softmax_of_logits(await x.values(nodes), temperature)
                nodes = [nodes[int(j)] for j in rng.choice(particles, particles, p=weights)]
                x.frontier = nodes
        x.found += [n for n in nodes if x.tree.terminal[n]]
        x.frontier = []

    return one_pass


def softmax_of_logits(values: Sequence[float], temperature: float = 1.0) -> NDArray[np.float64]:
    """softmax(log(v / (1 - v)) / T), values kept 1e-6 away from 0 and 1."""
    clipped = [min(max(v, _FLOOR), 1 - _FLOOR) for v in values]
    logits = np.array([math.log(v / (1 - v)) for v in clipped]) / temperature
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
