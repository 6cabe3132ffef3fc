"""What holds wherever a test is client and server at once, and a worker that paints at a pace."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pentimento.rpc import transport
from pentimento.testing.paced_worker import PacedWorker, serve


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is given up a second and a half after a ping that nobody answered, and after a second while it is
    made. A test process that has no processor for so long is both ends of it, and would lose all its calls."""
    longer = {"grpc.keepalive_timeout_ms": 60_000, "grpc.http2.ping_timeout_ms": 60_000}
    monkeypatch.setattr(transport, "KEEPALIVE", tuple((dict(transport.KEEPALIVE) | longer).items()))
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT_MS", 10_000)


@pytest.fixture(autouse=True)
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    be_patient(monkeypatch)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for sockets, which pytest's own tmp_path may not be."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as path:
        yield Path(path)


@pytest.fixture
async def worker(folder: Path) -> AsyncIterator[PacedWorker]:
    paced = PacedWorker("w1")
    server = await serve(paced, f"unix:{folder / 'w1'}")
    yield paced
    await server.stop()
