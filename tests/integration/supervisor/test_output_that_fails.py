"""A suite whose output goes nowhere does its duties: what is killed serves again, a stop ends everything."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.supervisor.state import marked_processes
from tests.integration.supervisor.started_toys import TIMEOUT_S, toy_suite

CHATTY = "--chatty"


@pytest.fixture(params=["closed", "full"])
def pipe(request: pytest.FixtureRequest) -> Iterator[int]:
    """The end for writing of a pipe whose reader is gone, or has stopped reading."""
    reader, writer = os.pipe()
    if request.param == "closed":
        os.close(reader)
    yield writer
    os.close(writer)
    if request.param == "full":
        os.close(reader)


@pytest.mark.slow
def test_restarts_and_a_stop_need_nobody_who_reads(tmp_path: Path, pipe: int) -> None:
    with toy_suite(tmp_path, CHATTY, stdout=pipe) as suite:
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()


@pytest.mark.slow
def test_what_programs_read_of_a_suite_needs_nobody_who_reads(tmp_path: Path, pipe: int) -> None:
    with toy_suite(tmp_path, "--json", stdout=pipe) as suite:
        assert suite.is_announced()
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()


@pytest.mark.slow
def test_what_programs_read_of_a_suite_needs_no_room(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full, toy_suite(tmp_path, "--json", stdout=full.fileno()) as suite:
        assert suite.is_announced()
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()


@pytest.mark.slow
def test_down_needs_nobody_who_reads(tmp_path: Path, pipe: int) -> None:
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
