"""Torch on one thread, for tests that compare what two processes compute."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As many as worker and engine use: sums split over two threads differ in their last bits. In each module that
    imports it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
