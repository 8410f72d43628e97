"""Which shards one of several processes labels; small, so that a command can look at it before anything is loaded."""

from dataclasses import dataclass

from stepward.prm.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """The shards of one of several processes that label one folder together.

    Attributes:
        number: Which process this is, from 1, of ``of``; its shards are every ``of``-th.
        lease_s: Claim shards by leases of so many seconds, where the file system has no locks between machines.
    """

    number: int
    of: int
    lease_s: float | None = None

    @classmethod
    def parse(cls, text: str, lease_s: float | None = None) -> "Part":
        """From ``i/n``.

        Raises:
            ConfigError: It is not two whole numbers with 1 <= i <= n.
        """
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ConfigError([f"shards: {text!r} is not i/n with 1 <= i <= n, such as 3/8"])
        if lease_s is not None and lease_s < 10:
            raise ConfigError(
                [f"lease_s: {lease_s} is too short for a clock and a busy disk; give 10 or more"]
            )
        return cls(int(number), int(of), lease_s)

    def holds(self, index: int) -> bool:
        """Whether a shard is one of this part's."""
        return index % self.of == self.number - 1
