"""Torch on as many threads as a test says, for those that compare what two processes compute, or count threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """So many while the context is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As many as worker and engine use: sums split over two threads differ in their last bits. In each module that
    imports it."""
    with torch_threads(1):
        yield
