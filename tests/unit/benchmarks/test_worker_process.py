"""Test the cores of a benchmark's servers, and that none outlives it."""

import os
import signal
import subprocess
import sys

import psutil

from lab.fixtures.worker_process import start_on

TELL_CORES = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
BENCHMARK = """
import subprocess, sys, time
from benchmarks.report import parse_options
parse_options("example", None)
with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as server:
    try:
        print(server.pid, flush=True)
        time.sleep(600)
    finally:
        server.terminate()
"""


def test_worker_process_stays_on_its_core() -> None:
    own = os.sched_getaffinity(0)

    with start_on(max(own), TELL_CORES, stdout=subprocess.PIPE) as process:
        told, _ = process.communicate()

    assert told.decode().strip() == str([max(own)])
    assert os.sched_getaffinity(0) == own


def test_ended_benchmark_ends_its_servers() -> None:
    with subprocess.Popen([sys.executable, "-c", BENCHMARK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as one:
        assert one.stdout is not None
        server = int(one.stdout.readline())

        one.send_signal(signal.SIGTERM)
        one.wait()

    assert not psutil.pid_exists(server)
