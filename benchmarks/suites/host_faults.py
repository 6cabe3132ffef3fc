"""Disturb one process's host: step its clock, exhaust its descriptors, fill its disk."""

import errno
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.suites.limited_link import run_command

# Debian's package libfaketime; time namespaces shift monotonic clocks only.
_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
_FILLER = "filler"
_PIECE_BYTES = 1 << 20


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


@contextmanager
def exhausted_descriptors(process: psutil.Process) -> Iterator[None]:
    """Allow the process no further descriptor within the block."""
    before = (0, 0)
    with suppress(psutil.Error):
        before = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), before[1]))
    try:
        yield
    finally:
        # It may have ended, or been started again.
        with suppress(psutil.Error):
            process.rlimit(psutil.RLIMIT_NOFILE, before)


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
