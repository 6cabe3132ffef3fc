import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pentimento.testing.frontdoor_suite import FrontdoorSuite, running_suite
from pentimento.testing.paced_worker import PacedWorker, serve


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


@pytest.fixture
async def suite(folder: Path, worker: PacedWorker) -> AsyncIterator[FrontdoorSuite]:
    async with running_suite(folder) as running:
        yield running
