"""Import large libraries quickly at a process's start."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing_much() -> Iterator[None]:
    """Collect no garbage inside: imported objects stay, and each collection would scan them all again. That is a
    seventh of the processor time of a worker's start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
