"""Provide a scripted server on each kind of address."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from pentimento.rpc import RpcServerSettings
from tests.contract.rpc.scripted import Scripted, channel_to, serving
from tests.support.patient_connections import be_patient


@pytest.fixture(autouse=True)
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """Return a path short enough for a socket; pytest's own tmp_path may be too long."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        yield Path(folder) / "s"


@pytest.fixture
async def target(socket_path: Path) -> AsyncIterator[Scripted]:
    """Start a scripted server on a Unix socket."""
    async with serving(RpcServerSettings(listen=(f"unix:{socket_path}",))) as made:
        yield made


@pytest.fixture
async def channel(target: Scripted) -> AsyncIterator[grpc.aio.Channel]:
    async with channel_to(target) as opened:
        yield opened
