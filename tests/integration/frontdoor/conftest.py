import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import FrontdoorSuite, running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.domain.clock import SystemClock
from pentimento.domain.tenants import DAY_S, HOUR_S
from tests.integration.frontdoor.administered import Administered, administered


@pytest.fixture
async def suite(folder: Path, worker: PacedWorker) -> AsyncIterator[FrontdoorSuite]:
    async with running_suite(folder) as running:
        yield running


@pytest.fixture
def at_half_past_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an hour nor a day ends during the test."""
    ahead_s = 12.5 * HOUR_S - time.time() % DAY_S
    monkeypatch.setattr(SystemClock, "wall", lambda _: time.time() + ahead_s)


@pytest.fixture
async def running(folder: Path, worker: PacedWorker) -> AsyncIterator[Administered]:
    async with administered(folder) as one:
        yield one
