"""Modules and models outlive a run: while one goes on, the garbage collector need not walk through them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_rest() -> Iterator[None]:
    """Leave what is loaded now out of full collections: with torch loaded, one costs as much as grading 100 texts."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
