"""Provide a whole suite to clients outside the project."""

import pytest

from pentimento.supervisor.local import LocalSuite


@pytest.fixture
def suite_address(suite: LocalSuite) -> str:
    """host:port of the public API of a suite with the tiny heavy model."""
    return suite.endpoint.public
