"""Seeds as a function of the unit of work, so that they depend on no order, batch or number of workers."""

import hashlib

_MASK = (1 << 63) - 1


def derive_seed(run_seed: int, *parts: str | int) -> int:
    """A 63-bit seed for one unit of work.

    Args:
        run_seed: The run's seed.
        parts: What names the unit, such as problem id, solution index, prefix and rollout index.

    Returns:
        The first 63 bits of BLAKE2b over the parts, each with its length, so that no two lists collide.
    """
    encoded = [str(part).encode() for part in (run_seed, *parts)]
    named = b"".join([len(data).to_bytes(4, "big") + data for data in encoded])
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "big") & _MASK
