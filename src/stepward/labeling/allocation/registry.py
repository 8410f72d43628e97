"""Names to allocation rules, for a configuration that names one."""

import inspect
from collections.abc import Callable

from stepward.labeling.allocation.binary_search import BinarySearch
from stepward.labeling.allocation.difficulty_k import DifficultyK
from stepward.labeling.allocation.fixed_k import FixedK, StopAtFirstRight
from stepward.labeling.allocation.information_gain import InformationGain
from stepward.labeling.allocation.two_fidelity import TwoFidelity
from stepward.labeling.allocation.variance_rounds import VarianceRounds
from stepward.labeling.evidence import AllocationRule
from stepward.prm.errors import ConfigError

ALLOCATIONS: dict[str, Callable[..., AllocationRule]] = {
    "fixed_k": FixedK,
    "stop_at_first_right": StopAtFirstRight,
    "binary_search": BinarySearch,
    "information_gain": InformationGain,
    "difficulty_k": DifficultyK,
    "variance_rounds": VarianceRounds,
    "two_fidelity": TwoFidelity,
}


def allocation_options(name: str) -> tuple[str, ...]:
    """Names of an allocation's own options.

    Raises:
        ConfigError: No such rule.
    """
    _check(name)
    return tuple(inspect.signature(ALLOCATIONS[name]).parameters)


def make_allocation(name: str, **options: object) -> AllocationRule:
    """The allocation rule ``name`` with its own options.

    Raises:
        ConfigError: No such rule.
    """
    _check(name)
    return ALLOCATIONS[name](**options)


def _check(name: str) -> None:
    if name not in ALLOCATIONS:
        raise ConfigError([f"allocation: {name!r} is unknown; one of {', '.join(sorted(ALLOCATIONS))}"])
