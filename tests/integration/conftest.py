"""Set patient connections for tests with client and server in one process, and provide a paced worker."""

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
    """Yield a folder with a path short enough for sockets; pytest's own tmp_path may be too long."""
    with tempfile.TemporaryDirectory(prefix="pmt-") as path:
        yield Path(path)


@pytest.fixture
async def worker(folder: Path) -> AsyncIterator[PacedWorker]:
    paced = PacedWorker("w1")
    server = await serve(paced, f"unix:{folder / 'w1'}")
    yield paced
    await server.stop()
