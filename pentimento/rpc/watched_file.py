"""Watch a small file that may be replaced while a process runs; checked once a second at most."""

import errno
import time
from collections.abc import Callable
from pathlib import Path

CHECK_INTERVAL_S = 1.0
# Temporary shortages of a process: descriptors, memory.
PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

Version = tuple[int, ...]


class WatchedFile:
    """Detect that the file at `path` was written, replaced, or made readable since it was last read."""

    def __init__(self, path: Path, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._monotonic = monotonic
        self._checked_at = monotonic()
        self._version: Version | None = version_of(path)

    def changed(self) -> bool:
        """Return True once for each change; costs a stat a second, and a clock reading otherwise."""
        now = self._monotonic()
        if now - self._checked_at < CHECK_INTERVAL_S:
            return False
        self._checked_at = now
        before, self._version = self._version, version_of(self.path)
        return before != self._version

    def read_in_vain(self, error: Exception) -> None:
        """Record that the changed file could not be read because of the cause of `error`. A temporary cause reports the
        change again."""
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in PASSING:
            self._version = ()


def version_of(path: Path) -> Version | None:
    """Return a version that differs after each change of the file; None if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    # A change of permissions changes only the last field.
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_ctime_ns
