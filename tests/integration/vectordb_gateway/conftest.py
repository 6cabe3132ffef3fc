"""Serve gateways over gRPC on the embedded stores: shared ones per test process, and one per test.

All tests of this folder run in one event loop, that of the shared gateways. A test that changes settings, fills, breaks
or restarts a gateway, or reads all of its stores, uses its own.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support import gateways
from tests.support.event_loops import run_in_one_loop
from tests.support.gateways import RunningGateway, image_thresholds, running_gateway
from tests.support.patient_connections import be_patient


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    run_in_one_loop(items, Path(__file__).parent)


@pytest_asyncio.fixture(loop_scope="session")
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """Run a gateway for the test."""
    async with running_gateway(tmp_path) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def latents_process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    async with AsyncExitStack() as stack:
        yield await _shared(stack, tmp_path_factory.mktemp("latents"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def images_process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    async with AsyncExitStack() as stack:
        yield await _shared(stack, tmp_path_factory.mktemp("images"), *image_thresholds("0.3:0.4"))


async def _shared(stack: AsyncExitStack, directory: Path, *flags: str) -> RunningGateway:
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch)
        return await stack.enter_async_context(running_gateway(directory, *flags))


@pytest.fixture
def tenant(monkeypatch: pytest.MonkeyPatch) -> str:
    """Use the test's own tenant in all scopes and attempts without a tenant."""
    monkeypatch.setattr(gateways, "default_tenant", gateways.new_tenant())
    return gateways.default_tenant


@pytest.fixture
def shared(latents_process: RunningGateway, tenant: str) -> RunningGateway:
    """Return a gateway with the default settings, for the test's tenant."""
    return latents_process


@pytest.fixture
def imaging(images_process: RunningGateway, tenant: str) -> RunningGateway:
    """Return a gateway that also reuses images, from 0.3 on at four tenths of the steps, for the test's tenant."""
    return images_process
