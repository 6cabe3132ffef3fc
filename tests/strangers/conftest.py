"""A whole suite that somebody else runs."""

from collections.abc import Iterator

import pytest

from pentimento.sdk.local import local_suite


@pytest.fixture(scope="session")
def suite_address() -> Iterator[str]:
    """host:port of the public API of a suite with the tiny heavy model."""
    with local_suite(["--device", "cpu"]) as suite:
        yield suite.endpoint.public
