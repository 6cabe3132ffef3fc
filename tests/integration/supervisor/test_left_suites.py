"""Test suites with a missing supervisor, state directory or log reader."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pentimento.cli.connection import running_suite
from pentimento.supervisor.state import MARK, clean_leftovers, marked_processes
from tests.integration.supervisor.started_toys import HERE, TIMEOUT_S, ToySuite, toy_suite

LEFTOVER = """
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
time.sleep(600)
"""


@contextmanager
def leftover_of(state: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Run what a crashed supervisor of that state left: a process that listens on the port."""
    environment = {**os.environ, MARK: str(state)}
    with subprocess.Popen([sys.executable, "-c", LEFTOVER], env=environment, stdout=subprocess.PIPE, text=True) as left:
        assert left.stdout is not None
        try:
            # Its environment may be seen only a moment after it was made.
            yield left, int(left.stdout.readline())
        finally:
            left.kill()


def test_clean_leftovers_ends_processes_and_removes_sockets(tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    (sockets / "frontdoor.sock").touch()
    with leftover_of(tmp_path / "state") as (left, _):
        count = clean_leftovers(tmp_path / "state", sockets)

        assert count == 1
        assert left.poll() is not None
        assert not sockets.exists()


def test_up_takes_the_port_that_a_leftover_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with leftover_of(tmp_path / "state") as (left, port):
        monkeypatch.setenv("PUBLIC", f"127.0.0.1:{port}")
        with toy_suite(tmp_path) as suite:
            assert suite.is_announced()
            assert left.poll() is not None
            assert suite.stop_ends_everything()


@pytest.fixture
def removed(tmp_path: Path):
    with toy_suite(tmp_path) as suite:
        assert suite.is_announced()
        shutil.rmtree(suite.state.path)
        yield suite


@pytest.mark.slow
def test_down_stops_suite_of_removed_state_directory(removed: ToySuite) -> None:
    assert running_suite(removed.state.path).supervisor_pid == removed.supervisor.pid

    down = [sys.executable, "-m", "pentimento.cli", "down", "--state-dir", str(removed.state.path)]
    subprocess.run(down, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)

    assert removed.supervisor.wait(TIMEOUT_S) == 0
    assert marked_processes(removed.state.path) == []
    assert removed.state.owner() is None


@pytest.mark.slow
def test_second_up_leaves_live_suite_alone(removed: ToySuite) -> None:
    before = {process.pid for process in marked_processes(removed.state.path)}

    second = [sys.executable, str(HERE / "toy_suite.py"), str(removed.state.path)]
    done = subprocess.run(second, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert f"a suite already runs on {removed.state.path} (pid {removed.supervisor.pid})" in done.stderr
    assert {process.pid for process in marked_processes(removed.state.path)} == before
    assert removed.killed_process_serves_again("worker")


@pytest.mark.slow
def test_scale_of_removed_state_directory_reports_it(removed: ToySuite) -> None:
    scale = [sys.executable, "-m", "pentimento.cli", "scale", "worker", "2", "--state-dir", str(removed.state.path)]

    done = subprocess.run(scale, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 1
    assert f"{removed.state.path} was removed while its suite runs" in done.stderr


CHATTY = "--chatty"


@pytest.fixture(params=["closed", "full"])
def pipe(request: pytest.FixtureRequest) -> Iterator[int]:
    """Yield a pipe's write end, with its reader closed or no longer reading."""
    reader, writer = os.pipe()
    if request.param == "closed":
        os.close(reader)
    yield writer
    os.close(writer)
    if request.param == "full":
        os.close(reader)


@pytest.mark.slow
def test_restarts_and_stop_need_no_reader(tmp_path: Path, pipe: int) -> None:
    with toy_suite(tmp_path, CHATTY, stdout=pipe) as suite:
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()


@pytest.mark.slow
def test_json_output_needs_no_reader(tmp_path: Path, pipe: int) -> None:
    with toy_suite(tmp_path, "--json", stdout=pipe) as suite:
        assert suite.is_announced()
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()


@pytest.mark.slow
def test_json_output_needs_no_space(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full, toy_suite(tmp_path, "--json", stdout=full.fileno()) as suite:
        assert suite.is_announced()
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()


@pytest.mark.slow
def test_down_needs_no_reader(tmp_path: Path, pipe: int) -> None:
    with toy_suite(tmp_path, CHATTY, stdout=pipe) as suite:
        suite.process("frontdoor")

        down = [sys.executable, "-m", "pentimento.cli", "down", "--state-dir", str(suite.state.path)]
        subprocess.run(down, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)

        assert suite.supervisor.wait(TIMEOUT_S) == 0
        assert marked_processes(suite.state.path) == []


@pytest.mark.slow
def test_restarts_and_a_stop_need_no_room_for_logs(tmp_path: Path) -> None:
    logs = tmp_path / "state" / "logs"
    logs.mkdir(parents=True)
    for name in ("frontdoor", "worker", "supervisor"):
        (logs / f"{name}.log").symlink_to("/dev/full")

    with toy_suite(tmp_path, CHATTY) as suite:
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()
