from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pentimento.testing.frontdoor_suite import FrontdoorSuite, running_suite
from pentimento.testing.paced_worker import PacedWorker


@pytest.fixture
async def suite(folder: Path, worker: PacedWorker) -> AsyncIterator[FrontdoorSuite]:
    async with running_suite(folder) as running:
        yield running
