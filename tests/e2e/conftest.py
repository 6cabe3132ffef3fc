"""Start real suites: a process per service, the zoo's weights, real stores. A start costs more than most tests, so the
tests of a folder share one."""

import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from pentimento.sdk import AsyncClient
from pentimento.supervisor.local import COMMAND, LocalSuite, local_suite
from pentimento.supervisor.state import marked_processes
from tests.e2e.folder_suite import FolderSuite
from tests.support.edge_packages import missing

STARTED = FolderSuite(Path(__file__).parent, apart=("guarded", "two_models"))


@dataclass(frozen=True)
class Crash:
    """Record the processes that remain after their supervisor was killed (-9) during the start."""

    state_directory: Path
    processes: list[psutil.Process]


@pytest.fixture(scope="session", autouse=True)
def patient_frontdoors() -> Iterator[None]:
    """Set waits that a busy machine cannot exceed. Without a vector, an image leaves nothing in the cache, and a test
    that searches for its entry never ends; without a score, an uncertain light image is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENTIMENTO_FRONTDOOR_PART_WAIT_FACTOR", "300")
        yield


@pytest.fixture(scope="session")
def crash(patient_frontdoors: None) -> Iterator[Crash]:
    with tempfile.TemporaryDirectory(prefix="pentimento-") as folder:
        state = Path(folder) / "state"
        supervisor = subprocess.Popen([*COMMAND, "--listen", "127.0.0.1:0", "--state-dir", str(state)])
        while len(left := marked_processes(state)) < 5:
            assert supervisor.poll() is None
            time.sleep(0.01)
        supervisor.kill()
        supervisor.wait()
        yield Crash(state, left)


@pytest.fixture(scope="session")
def suite(crash: Crash) -> Iterator[LocalSuite]:
    """Start one heavy model with ControlNets, LoRAs and HTTP, in the directory of a killed suite."""
    flags = ["--controlnets", "tiny", "--adapters", "tiny"]
    flags += [] if missing() else ["--http", "127.0.0.1:0"]
    with STARTED:
        yield STARTED.enter_context(local_suite(flags, state_dir=crash.state_directory))


@pytest.hookimpl(trylast=True)  # after the test's own fixtures
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    STARTED.end_before(nextitem)


@pytest.fixture
async def client(suite: LocalSuite) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(suite.endpoint.public) as opened:
        yield opened
