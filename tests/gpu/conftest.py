"""Require a GPU: `make test-gpu`. Without one these tests fail."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def whole_products() -> Iterator[None]:
    """Compute convolutions in single precision: by default they round their inputs to ten bits."""
    if not torch.cuda.is_available():
        pytest.fail("no CUDA device can be used")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "allow_tf32", False)
        yield
