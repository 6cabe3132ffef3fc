"""Set torch's threads, for tests that compare results of two processes or count threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Use `count` threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, like worker and engine, in every module that imports this: sums split over two threads differ in
    their last bits."""
    with torch_threads(1):
        yield
