"""Serve a controller on a Unix socket, in this process: the real server, channel and clients."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pentimento.clients.controller import ControllerClient
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from services.controller.settings import ControllerSettings
from services.controller.wiring import wire


@pytest.fixture
def address() -> Iterator[str]:
    """Short enough for a socket, which pytest's own tmp_path may not be."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        yield f"unix:{Path(folder) / 'c'}"


@pytest.fixture
def lease_s() -> float:
    """Longer than any test, unless the test says otherwise."""
    return 60.0


@pytest.fixture
async def client(address: str, lease_s: float) -> AsyncIterator[ControllerClient]:
    """Return a client of a running controller."""
    process = wire(ControllerSettings(RpcServerSettings(listen=(address,)), lease_s=lease_s))
    await process.server.start()
    await process.warm()
    process.server.set_serving()
    async with open_channel(address, RpcChannelSettings()) as channel:
        yield ControllerClient(channel)
    await process.drain()
    await process.server.stop()
