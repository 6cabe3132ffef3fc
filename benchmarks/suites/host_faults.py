"""Disturb one process's host: step its clock, exhaust its descriptors or memory, fill its disk or slow it down."""

import errno
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.suites.limited_link import run_command

# Debian's package libfaketime; time namespaces shift monotonic clocks only.
_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
_FILLER = "filler"
_PIECE_BYTES = 1 << 20
# System calls that wait for a disk, and the delay of each. `write` is left out: it also serves pipes and sockets.
_DISK_CALLS = "fsync,fdatasync,msync,sync_file_range,pwrite64,pwritev,pwritev2,rename,renameat,renameat2"
_DISK_DELAY_MS = 200


def can_step_clocks() -> bool:
    """Return whether libfaketime is installed."""
    return bool(_LIBRARIES)


class SteppedClock:
    """Set the wall clock of one process by a file; monotonic clocks stay, as at a step of the host's clock."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.step(0)

    def step(self, seconds: int) -> None:
        """Set the clock's offset."""
        self._file.write_text(f"{seconds:+d}\n")

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables of a process by this clock; none without libfaketime."""
        if not can_step_clocks():
            return {}
        return {
            "LD_PRELOAD": str(_LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Without it waits on conditions return at once, again and again.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
        }


def exhausted_descriptors(process: psutil.Process) -> AbstractContextManager[None]:
    """Allow the process no further descriptor within the block."""
    return _exhausted(process, psutil.RLIMIT_NOFILE, process.num_fds)


def exhausted_memory(process: psutil.Process) -> AbstractContextManager[None]:
    """Allow the process no further address space within the block: allocations and new threads fail."""
    return _exhausted(process, psutil.RLIMIT_AS, lambda: process.memory_info().vms)


@contextmanager
def _exhausted(process: psutil.Process, limit: int, used: Callable[[], int]) -> Iterator[None]:
    before = (0, 0)
    with suppress(psutil.Error):
        before = process.rlimit(limit)
        process.rlimit(limit, (used(), before[1]))
    try:
        yield
    finally:
        # It may have ended, or been started again.
        with suppress(psutil.Error):
            process.rlimit(limit, before)


def can_slow_disks() -> bool:
    """Return whether strace is installed and may trace processes."""
    path = shutil.which("strace")
    return path is not None and not subprocess.run([path, "-o", "/dev/null", "true"], capture_output=True).returncode


@contextmanager
def slow_disk(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Delay each write, sync and rename of files by the processes within the block, as a disk with a long queue."""
    traced = [part for process in processes for part in ("-p", str(process.pid))]
    rules = (f"trace={_DISK_CALLS}", f"inject={_DISK_CALLS}:delay_enter={_DISK_DELAY_MS}ms")
    given = [part for rule in rules for part in ("-e", rule)]
    command = ["strace", "-f", "-qq", "-o", "/dev/null", *given, *traced]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        tracer.terminate()
        tracer.wait()


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Fill the folder's disk within the block."""
    filler = folder / _FILLER
    try:
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(_PIECE_BYTES)) == _PIECE_BYTES:
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        yield
    finally:
        filler.unlink()


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a disk of that size at the folder within the block. Raises NotFound where none may be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = folder.stat()
    options = f"size={size_bytes},mode=700,uid={owner.st_uid},gid={owner.st_gid}"
    run_command(f"mount -t tmpfs -o {options} tmpfs {folder}")
    try:
        yield folder
    finally:
        # Lazily: a process may still have a file open there.
        subprocess.run(["umount", "-l", str(folder)], check=False)
