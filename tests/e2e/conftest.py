"""One real suite for the whole tier: every service a process of its own, the zoo's weights, real stores."""

from collections.abc import AsyncIterator, Iterator

import pytest

from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import LocalSuite, local_suite


@pytest.fixture(scope="session")
def suite() -> Iterator[LocalSuite]:
    with local_suite() as running:
        yield running


@pytest.fixture
async def client(suite: LocalSuite) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(suite.endpoint.public) as opened:
        yield opened
