"""Faults of one process's host: clock, descriptors, memory, disk."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.suites.host_faults import (
    SteppedClock,
    can_slow_disks,
    can_step_clocks,
    exhausted_descriptors,
    exhausted_memory,
    full_disk,
    slow_disk,
)
from tests.support.small_disks import mounted_tmpfs

SAY_TIME = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
OPEN_FILES = """
import sys
for _ in sys.stdin:
    try: open("/dev/null").close(); print("opened", flush=True)
    except OSError as error: print(error.errno, flush=True)
"""

TAKE_MEMORY = """
import sys
for _ in sys.stdin:
    try: bytearray(1 << 30); print("taken", flush=True)
    except MemoryError: print("none", flush=True)
"""
SYNC_FILE = """
import os, sys, time
for _ in sys.stdin:
    began = time.monotonic()
    os.fsync(os.open(PLACE, os.O_CREAT | os.O_WRONLY))
    print(time.monotonic() - began, flush=True)
"""


class Asked:
    """A program that answers each line of its input with one line."""

    def __init__(self, program: str, environment: dict[str, str]) -> None:
        given = {**os.environ, **environment}
        command = [sys.executable, "-c", program]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=given)

    def answer(self) -> str:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().strip()

    def end(self) -> None:
        self.child.communicate()


@pytest.mark.skipif(not can_step_clocks(), reason="libfaketime is not installed")
def test_stepped_clock_shifts_wall_time_of_running_process_and_no_monotonic_time(tmp_path: Path) -> None:
    clock = SteppedClock(tmp_path / "clock")
    program = Asked(SAY_TIME, dict(clock.environment))
    wall_s, monotonic_s = map(float, program.answer().split())

    clock.step(-300)
    # The library reads its file once a second.
    while (now := program.answer()) and float(now.split()[0]) > wall_s - 200:
        pass

    assert float(now.split()[1]) >= monotonic_s
    program.end()


def test_exhausted_descriptors_fail_until_the_block_ends() -> None:
    program = Asked(OPEN_FILES, {})
    assert program.answer() == "opened"

    with exhausted_descriptors(psutil.Process(program.child.pid)):
        assert program.answer() == "24"

    assert program.answer() == "opened"
    program.end()


def test_exhausted_memory_fails_allocations_until_the_block_ends() -> None:
    program = Asked(TAKE_MEMORY, {})
    assert program.answer() == "taken"

    with exhausted_memory(psutil.Process(program.child.pid)):
        assert program.answer() == "none"

    assert program.answer() == "taken"
    program.end()


@pytest.mark.skipif(not can_slow_disks(), reason="strace is not installed, or may not trace")
def test_slow_disk_delays_syncs_until_the_block_ends(tmp_path: Path) -> None:
    program = Asked(SYNC_FILE.replace("PLACE", repr(str(tmp_path / "file"))), {})

    def tracer() -> str:
        lines = Path(f"/proc/{program.child.pid}/status").read_text().splitlines()
        return next(line.split()[1] for line in lines if line.startswith("TracerPid"))

    with slow_disk([psutil.Process(program.child.pid)]):
        # It attaches a moment later, and delays every sync from then on.
        while tracer() == "0" or float(program.answer()) < 0.2:
            pass
        assert float(program.answer()) >= 0.2

    assert tracer() == "0"
    program.end()


def test_slow_disk_of_ended_process_changes_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(child.pid)
    child.wait()

    with slow_disk([process]):
        pass


def test_exhausted_descriptors_of_ended_process_change_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(child.pid)
    child.wait()

    with exhausted_descriptors(process):
        pass


def test_full_disk_takes_no_byte_until_the_block_ends(tmp_path: Path) -> None:
    with mounted_tmpfs(tmp_path, 1 << 20) as disk:
        with full_disk(disk), pytest.raises(OSError, match="No space left"):
            (disk / "file").write_bytes(b"x")
        (disk / "file").write_bytes(b"x")
        assert [path.name for path in disk.iterdir()] == ["file"]
