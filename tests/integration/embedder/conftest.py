"""Serve an embedder on a Unix socket, in this process: the real server, channel and client."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pentimento.clients.embedder import EmbedderClient
from pentimento.rpc import RpcChannelSettings, RpcServerSettings, open_channel
from services.embedder.settings import EmbedderSettings
from services.embedder.wiring import EmbedderProcess, wire
from tests.support.encoders import write_encoder


@pytest.fixture(scope="session")
def encoder_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def address() -> Iterator[str]:
    """Short enough for a socket, which pytest's own tmp_path may not be."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        yield f"unix:{Path(folder) / 'e'}"


@pytest.fixture
async def process(encoder_directory: Path, address: str) -> AsyncIterator[EmbedderProcess]:
    """Listening, its encoder not loaded yet."""
    rpc, channels = RpcServerSettings(listen=(address,)), RpcChannelSettings()
    made = wire(EmbedderSettings(rpc, channels, encoder_directory))
    await made.server.start()
    yield made
    await made.drain()
    await made.server.stop()


@pytest.fixture
async def cold_client(process: EmbedderProcess, address: str) -> AsyncIterator[EmbedderClient]:
    async with open_channel(address, RpcChannelSettings()) as channel:
        yield EmbedderClient(channel)


@pytest.fixture
async def client(process: EmbedderProcess, cold_client: EmbedderClient) -> EmbedderClient:
    """Return a client of a serving embedder."""
    await process.warm()
    process.server.set_serving()
    return cold_client
