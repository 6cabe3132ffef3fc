"""What holds for all tests of parts: what one draws does not depend on those that its process ran before."""

import sys

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let torch begin anew where it is loaded: some tests compare what is computed of what it draws."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)
