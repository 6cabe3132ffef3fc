"""Start processes of a suite without a controller, and a client of its frontdoor."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pentimento.clients.image import ImageClient
from pentimento.rpc import RpcChannelSettings, open_channel
from tests.faults.frontdoor.processes import Processes, processes
from tests.support.patient_connections import be_patient


@pytest.fixture(autouse=True)
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
def running() -> Iterator[Processes]:
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder, processes(Path(folder)) as started:
        yield started


@pytest.fixture
async def client(running: Processes) -> AsyncIterator[ImageClient]:
    async with open_channel(running.address("f"), RpcChannelSettings()) as channel:
        yield ImageClient(channel)
