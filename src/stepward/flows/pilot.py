"""Run-wide constants, fixed by a small pilot before a run and kept in its manifest.

A decision about a problem may read such constants and its own results, nothing else. A resumed run takes them from
the manifest that is there, so that it goes on at the same price whatever the engine.
"""

import asyncio
import statistics
from collections.abc import Mapping, Sequence

from stepward.flows.config import LabelConfig
from stepward.labeling.allocation.information_gain import scale_free_price
from stepward.labeling.evidence import LabelingConstants
from stepward.labeling.plan import Engines, GivenSolution
from stepward.prm.dataset.folder import stored_manifest
from stepward.prm.errors import InputError
from stepward.prm.policy import SampleRequest
from stepward.prm.seeds import derive_seed
from stepward.prm.types import Allocation, Prefix, Problem

PILOT_PROBLEMS = 16


async def fix_constants(
    config: LabelConfig,
    engines: Engines,
    problems: Sequence[Problem],
    given: Mapping[str, Sequence[GivenSolution]] | None,
) -> LabelingConstants:
    """The constants of a run: given, from the manifest that is there, or by a pilot.

    The pilot draws one solution of some problems, spread over the file, with the seeds that the run will use.

    Raises:
        InputError: The pilot's solutions are all empty.
    """
    if config.price is not None:
        return LabelingConstants(price=config.price)
    if config.allocation != Allocation.INFORMATION_GAIN:
        return LabelingConstants()
    manifest = stored_manifest(config.out) if config.out.is_dir() else None
    if manifest is not None and "price" in manifest.constants:
        return LabelingConstants(price=float(manifest.constants["price"]))
    if given is not None:
        lengths = [len(engines.completer.tokenizer.encode(_text(g))) for gs in given.values() for g in gs]
    else:
        stride = max(1, len(problems) // PILOT_PROBLEMS)
        pilot = problems[::stride][:PILOT_PROBLEMS]
        lengths = await asyncio.gather(*(_solution_length(p, config, engines) for p in pilot))
    mean = statistics.fmean(lengths)
    if mean <= 0:
        raise InputError(
            "fixing the price: the pilot's solutions are all empty; give --price, in nats a token"
        )
    # Two digits: the price is a rule of thumb, and the manifest should be readable.
    return LabelingConstants(price=float(f"{scale_free_price(mean):.1e}"))


async def _solution_length(problem: Problem, config: LabelConfig, engines: Engines) -> int:
    request = SampleRequest(
        Prefix(problem.id, engines.render(problem)),
        config.sampler.build(),
        derive_seed(config.seed, problem.id, "solution", 0),
        want_logprobs=True,
    )
    return len((await engines.policy.sample(request)).token_ids)


def _text(given: GivenSolution) -> str:
    return given.text if given.text is not None else "\n".join(given.steps)
