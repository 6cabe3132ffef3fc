"""Run `pentimento up` of toy services as a process, for tests that watch it from outside."""

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
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pentimento.supervisor.state import StateDirectory, marked_processes

HERE = Path(__file__).parent
TIMEOUT_S = 120.0


@dataclass
class ToySuite:
    state: StateDirectory
    supervisor: "subprocess.Popen[bytes]"

    def process(self, name: str) -> psutil.Process:
        """Return the process once it serves."""
        address = f"unix:{self.state.sockets / name}.sock"
        soon = [(f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "max")]
        with grpc.insecure_channel(address, options=soon) as channel:
            asked = health_pb2_grpc.HealthStub(channel)
            answer = asked.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S, wait_for_ready=True)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        return next(one for one in marked_processes(self.state.path) if address in one.cmdline())

    def is_announced(self) -> bool:
        """Return whether all serve and the suite can be found within the time limit."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.state.endpoint_files[0].exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.state.endpoint_files[0].exists()

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
