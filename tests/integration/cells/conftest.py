from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lab.fixtures.paced_worker import PacedWorker
from tests.integration.cells.cell_suite import RunningCells
from tests.support.edge_packages import missing

collect_ignore_glob = ["test_*.py"] if missing() else []


@pytest.fixture
async def cells(folder: Path, worker: PacedWorker) -> AsyncIterator[RunningCells]:
    found = RunningCells(folder, ("a", "b", "c"))
    yield found
    await found.stop()
