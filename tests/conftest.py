"""Configure all tests: the directory of their files, their tiers, and their distribution to processes. A process gets
whole files. Tests that share a suite stay together, and slow ones come first."""

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from xdist.workermanage import WorkerController

import pentimento  # noqa: F401 # before diffusers and transformers, which import torchvision
from tests.file_scheduling import ByFile, kill_children_left_by
from tests.tiers import may_hold, rank, tier_of

if TYPE_CHECKING:
    from lab.fixtures.postgresql import PostgresqlServer

# Set before torch is imported, here and in the processes that tests start: two test processes share the cores, and on
# some processors the last bits of an image depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Idle threads of a test would spin until the others are done, on a core that another process needs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Use a file system in memory if there is one: stores under test sync every commit to disk, thousands of times.
MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30


def is_roomy(directory: Path) -> bool:
    """Return whether tests may write files and programs to the directory, and it has enough space."""
    if not (directory.is_dir() and os.access(directory, os.W_OK | os.X_OK)):
        return False
    return shutil.disk_usage(directory).free >= ROOM_BYTES and not os.statvfs(directory).f_flag & os.ST_NOEXEC


# Applies to this process and to the processes that it and its tests start.
if "TMPDIR" not in os.environ and is_roomy(MEMORY):
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None

# A shell starts background jobs with SIGINT ignored, and children inherit that. Tests interrupt their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example may take long on a busy machine.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False  # keep the order below instead of the longest files first
    return ByFile(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    if error:
        kill_children_left_by(node)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that left tests out because too many of its processes died."""
    scheduling = getattr(session.config.pluginmanager.getplugin("dsession"), "sched", None)
    if isinstance(scheduling, ByFile) and scheduling.has_pending and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=("first", "second"), help="only the tests of this tier (tests/tiers.py)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    tier = config.getoption("tier")
    return True if tier and not may_hold(collection_path, tier) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of another tier than the chosen one, and put slow folders first."""
    if tier := config.getoption("tier"):
        config.hook.pytest_deselected(items=[item for item in items if tier_of(item) != tier])
        items[:] = [item for item in items if tier_of(item) == tier]
    items.sort(key=lambda item: rank(item.nodeid.partition("::")[0]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Restore logging and the thread switch interval after each test. A program that a test runs in this process
    changes them at its start."""
    root, interval_s = logging.getLogger(), sys.getswitchinterval()
    handlers, level = root.handlers[:], root.level
    try:
        return (yield)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        sys.setswitchinterval(interval_s)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Collect garbage after the last test of each file, so that warnings about leaked resources appear in that file and
    not in the next one."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection while tests are imported and collected, and exclude the millions of objects that stay
    from later collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Run an S3 server and return its address, with its credentials in the environment."""
    from lab.fixtures.s3_server import running_s3_server

    with pytest.MonkeyPatch.context() as patch, running_s3_server() as endpoint:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield endpoint


@pytest.fixture(scope="session")
def postgresql() -> "Iterator[PostgresqlServer]":
    """Run a PostgreSQL server. Each test creates a separate database in it."""
    from lab.fixtures.postgresql import running_server, why_not

    if reason := why_not():
        pytest.skip(reason)
    with running_server() as server:
        yield server
