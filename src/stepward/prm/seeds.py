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
    digest = hashlib.blake2b(digest_size=8)
    for part in (run_seed, *parts):
        data = str(part).encode()
        digest.update(len(data).to_bytes(4, "big") + data)
    return int.from_bytes(digest.digest(), "big") & _MASK
