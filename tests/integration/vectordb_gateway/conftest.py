"""One gateway a test, over gRPC, on the embedded stores."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.gateways import RunningGateway, running_gateway


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(tmp_path) as running:
        yield running
