"""Policies by name. Other packages add theirs under the entry-point group ``stepward.policies``."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from stepward.prm.errors import ConfigError
from stepward.prm.policy import Policy

GROUP = "stepward.policies"

PolicyLoader = Callable[..., Policy]
"""(what stands after the colon, options) -> a policy."""

# Module and function, imported when asked for: an engine that is not used costs no import.
_LOADERS: dict[str, tuple[str, str, bool]] = {
    "embedded": ("stepward.labeling.policies.embedded", "load_embedded", False),
    "transformers": ("stepward.labeling.policies.transformers", "load_transformers", True),
    "replay": ("stepward.labeling.policies.replay", "load_replay", True),
    "vllm": ("stepward.labeling.policies.vllm", "load_vllm", True),
    "vllm_server": ("stepward.labeling.policies.vllm_server", "load_vllm_server", True),
    "openai": ("stepward.labeling.policies.openai", "load_openai", True),
}


def policy_names() -> tuple[str, ...]:
    """All names that ``load_policy`` knows, those of other packages included."""
    return tuple(sorted({*_LOADERS, *(point.name for point in entry_points(group=GROUP))}))


def load_policy(spec: str, **options: Any) -> Policy:
    """Load a policy.

    Args:
        spec: ``embedded``; ``replay:FILE``; ``transformers:FOLDER_OR_HUB_ID``; ``vllm:FOLDER_OR_HUB_ID`` (in
            process); ``vllm_server:URL`` and ``openai:URL``; a name from another package, with or without
            ``:ARGUMENT``; or a plain folder or Hub id, which the transformers engine loads.
        options: Handed to the engine's loader.

    Raises:
        ConfigError: The name is unknown, or the engine does not take an option.
        ModelError: The model cannot be loaded.
    """
    name, colon, argument = spec.partition(":")
    loader, takes_argument = _loader(name)
    if loader is None:
        loader, takes_argument = _loader("transformers")
        name, colon, argument = "transformers", ":", spec
    assert loader is not None
    if takes_argument and not argument:
        raise ConfigError([f"policy {spec!r}: the {name} engine needs an argument, as in {name}:WHAT"])
    if takes_argument is False and colon:
        raise ConfigError([f"policy {spec!r}: the {name} engine takes no argument; write {name}"])
    try:
        return loader(argument, **options) if argument else loader(**options)
    except TypeError as fault:
        if "argument" in str(fault) and "keyword" in str(fault):
            raise ConfigError([f"policy {spec!r}: {fault}"]) from fault
        raise


def _loader(name: str) -> tuple[PolicyLoader | None, bool | None]:
    """(the loader or None, whether it takes an argument; None = either)."""
    if name in _LOADERS:
        module, function, takes_argument = _LOADERS[name]
        return getattr(import_module(module), function), takes_argument
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.load(), None
    return None, None
