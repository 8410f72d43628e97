"""Test-time search methods by name; a method registers itself by decorator."""

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TypeVar

from stepward.labeling.search.exploration import Exploration
from stepward.prm.errors import ConfigError

SearchMethod = Callable[[Exploration], Awaitable[None]]
"""One pass of a method: draws, scores, and leaves what it found in ``found``; it may end by ``OutOfTokens``."""

Maker = TypeVar("Maker", bound=Callable[..., SearchMethod])

_MODULES = ("samples", "beam", "dvts", "best_first", "prm_tree", "particles", "blocks", "revise", "adaptive")
_METHODS: dict[str, Callable[..., SearchMethod]] = {}


def register_search(name: str) -> Callable[[Maker], Maker]:
    """Register the function that makes a method from its settings."""

    def register(maker: Maker) -> Maker:
        if name in _METHODS:
            raise ValueError(f"search method {name!r} is registered twice")
        _METHODS[name] = maker
        return maker

    return register


def search_names() -> tuple[str, ...]:
    """All names that ``make_search`` knows."""
    _load()
    return tuple(sorted(_METHODS))


def make_search(name: str, **settings: object) -> SearchMethod:
    """A method with its own settings.

    Raises:
        ConfigError: No such method, or a setting that it has not or that is out of range.
    """
    _load()
    if name not in _METHODS:
        raise ConfigError([f"search method {name!r} is unknown; one of {', '.join(search_names())}"])
    try:
        return _METHODS[name](**settings)
    except (TypeError, ValueError) as fault:
        raise ConfigError([f"search method {name!r}: {fault}"]) from fault


def at_least(least: int, **settings: int) -> None:
    """Raise ValueError for a setting below ``least``."""
    for name, value in settings.items():
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")


def _load() -> None:
    for module in _MODULES:
        import_module(f"stepward.labeling.search.{module}")
