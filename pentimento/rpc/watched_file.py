"""A small file that may be replaced while we run; looked at once a second at most."""

import errno
import time
from collections.abc import Callable
from pathlib import Path

CHECK_INTERVAL_S = 1.0
# What a process is out of for a while: descriptors, memory.
PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

Version = tuple[int, ...]


class WatchedFile:
    """Tells when the file at `path` was written, replaced, or let be read since it was last read."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._monotonic = monotonic
        self._checked_at = monotonic()
        self._version: Version | None = version_of(path)

    def changed(self) -> bool:
        """True once for each change; costs a stat a second, and a clock reading otherwise."""
        now = self._monotonic()
        if now - self._checked_at < CHECK_INTERVAL_S:
            return False
        self._checked_at = now
        before, self._version = self._version, version_of(self.path)
        return before != self._version

    def read_in_vain(self, error: Exception) -> None:
        """Note that what has changed could not be read because of what caused `error`. It is told again where that
        passes without another change of the file."""
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in PASSING:
            self._version = ()


def version_of(path: Path) -> Version | None:
    """Return what is another after each change of the file; None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    # Who may read it changes the last one alone.
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_ctime_ns
