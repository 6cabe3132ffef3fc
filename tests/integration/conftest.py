"""What holds wherever a test is client and server at once, and a worker that paints at a pace."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lab.fixtures.paced_worker import PacedWorker, serve
from tests.support.patient_connections import be_patient


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
