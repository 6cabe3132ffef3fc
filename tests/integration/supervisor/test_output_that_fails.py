"""A suite whose output goes nowhere does its duties: what is killed serves again, a stop ends everything."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pentimento.supervisor.leftovers import marked_processes
from pentimento.supervisor.state import StateDirectory

HERE = Path(__file__).parent
CHATTY = "--chatty"
TIMEOUT_S = 120.0


@dataclass
class ToySuite:
    state: StateDirectory
    supervisor: "subprocess.Popen[bytes]"

    def process(self, name: str) -> psutil.Process:
        """The one that serves now, once it does."""
        address = f"unix:{self.state.sockets / name}.sock"
        soon = [(f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "max")]
        with grpc.insecure_channel(address, options=soon) as channel:
            asked = health_pb2_grpc.HealthStub(channel)
            answer = asked.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S, wait_for_ready=True)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        return next(one for one in marked_processes(self.state.path) if address in one.cmdline())

    def is_announced(self) -> bool:
        """Once all serve, and it can be found."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.state.endpoint_file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.state.endpoint_file.exists()

    def killed_process_serves_again(self, name: str) -> bool:
        before = self.process(name)
        before.kill()
        before.wait(TIMEOUT_S)
        return self.process(name).pid != before.pid

    def stop_ends_everything(self) -> bool:
        self.supervisor.send_signal(signal.SIGTERM)
        return self.supervisor.wait(TIMEOUT_S) == 0 and marked_processes(self.state.path) == []


@contextmanager
def toy_suite(folder: Path, *flags: str, stdout: int = subprocess.DEVNULL) -> Iterator[ToySuite]:
    state = StateDirectory(folder / "state")
    supervisor = subprocess.Popen(
        [sys.executable, str(HERE / "toy_suite.py"), str(state.path), *flags],
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parents[2])))},
    )
    suite = ToySuite(state, supervisor)
    try:
        yield suite
    finally:
        supervisor.kill()
        supervisor.wait()
        for left in marked_processes(state.path):
            left.kill()


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


def test_restarts_and_a_stop_need_nobody_who_reads(tmp_path: Path, pipe: int) -> None:
    with toy_suite(tmp_path, CHATTY, stdout=pipe) as suite:
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()


def test_what_programs_read_of_a_suite_needs_nobody_who_reads(tmp_path: Path, pipe: int) -> None:
    with toy_suite(tmp_path, "--json", stdout=pipe) as suite:
        assert suite.is_announced()
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()


def test_what_programs_read_of_a_suite_needs_no_room(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full, toy_suite(tmp_path, "--json", stdout=full.fileno()) as suite:
        assert suite.is_announced()
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()


def test_down_needs_nobody_who_reads(tmp_path: Path, pipe: int) -> None:
    with toy_suite(tmp_path, CHATTY, stdout=pipe) as suite:
        suite.process("frontdoor")

        down = [sys.executable, "-m", "pentimento.cli", "down", "--state-dir", str(suite.state.path)]
        subprocess.run(down, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)

        assert suite.supervisor.wait(TIMEOUT_S) == 0
        assert marked_processes(suite.state.path) == []


def test_restarts_and_a_stop_need_no_room_for_logs(tmp_path: Path) -> None:
    logs = tmp_path / "state" / "logs"
    logs.mkdir(parents=True)
    for name in ("frontdoor", "worker", "supervisor"):
        (logs / f"{name}.log").symlink_to("/dev/full")

    with toy_suite(tmp_path, CHATTY) as suite:
        assert suite.killed_process_serves_again("worker")
        assert suite.stop_ends_everything()
