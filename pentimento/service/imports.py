"""Imports of large libraries at a process's start."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing_much() -> Iterator[None]:
    """Collect no garbage inside: what is imported stays, and each collection would pass over all of it again. Of a
    worker's start that is a seventh of the processor's time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
