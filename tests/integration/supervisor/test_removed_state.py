"""A suite whose state directory was removed is found, stopped and left alone like any other."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pentimento.cli.connection import running_suite
from pentimento.supervisor.state import marked_processes
from tests.integration.supervisor.started_toys import HERE, TIMEOUT_S, ToySuite, toy_suite


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
def test_scale_of_removed_state_directory_says_so(removed: ToySuite) -> None:
    scale = [sys.executable, "-m", "pentimento.cli", "scale", "worker", "2", "--state-dir", str(removed.state.path)]

    done = subprocess.run(scale, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 1
    assert f"{removed.state.path} was removed while its suite runs" in done.stderr
