"""Things by name that stand one in a file: a package's own modules, and those of other packages by entry point."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Generic, TypeVar

T = TypeVar("T")
Made = TypeVar("Made", bound=Callable[..., object])


@dataclass(slots=True)
class Registry(Generic[T]):
    """Entries that decorators file while modules are imported; all modules are, at the first look-up.

    Attributes:
        what: What an entry is, for messages.
        package: Whose modules are imported.
        group: The entry-point group in which other packages name a module each.
    """

    what: str
    package: str
    group: str
    _entries: dict[str, tuple[T, str]] = field(default_factory=dict[str, tuple[T, str]])
    _loaded: bool = False

    def file(self, name: str, entry: T, made: Made) -> Made:
        """File an entry under a name; gives back ``made``, the function that was decorated.

        Raises:
            ValueError: Another module has the name.
        """
        module = made.__module__
        _, owner = self._entries.get(name, (entry, module))
        if owner != module:
            raise ValueError(
                f"registering {self.what} {name!r} from {module}: the name is taken by {owner}; choose another"
            )
        self._entries[name] = (entry, module)
        return made

    def all(self) -> dict[str, T]:
        """All entries by name, sorted."""
        if not self._loaded:
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
            for point in entry_points(group=self.group):
                point.load()
            self._loaded = True
        return {name: entry for name, (entry, _) in sorted(self._entries.items())}
