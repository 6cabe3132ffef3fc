"""End this process at a numbered change of the disk, or let the disk be full from there on.

Call it in a forked child: neither the audit hook nor the replaced functions can be removed.
"""

import errno
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pentimento.domain.errors import PentimentoError

KILL, FULL = "kill", "full"
# Exit code of a child that ended by a PentimentoError.
OURS = 3
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CHANGES = {"os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.symlink", "os.chmod", "os.utime"}
# Changes that a full disk refuses; existing files can be renamed and deleted.
_NEEDS_ROOM = {"open", "os.truncate", "os.mkdir", "os.symlink", "write"}


class CrashPoint:
    """Count the changes of the disk, and end or fail at the one with the number `left`, from 1 on."""

    def __init__(self, left: int, kind: str) -> None:
        self._left = left
        self._kind = kind
        self._lock = threading.Lock()

    def install(self) -> None:
        """Count from here on: what Python's audit events report, and every write, before it and in its middle."""
        sys.addaudithook(self._audit)
        pwrite, write, fsync = os.pwrite, os.write, os.fsync

        def torn_pwrite(descriptor: int, data: Any, offset: int) -> int:
            self._pass("write")
            half = len(data) // 2
            pwrite(descriptor, data[:half], offset)
            self._pass("write")
            return half + pwrite(descriptor, data[half:], offset + half)

        def torn_write(descriptor: int, data: Any) -> int:
            self._pass("write")
            half = len(data) // 2
            write(descriptor, data[:half])
            self._pass("write")
            return half + write(descriptor, data[half:])

        def counted_fsync(descriptor: int) -> None:
            self._pass("fsync")
            fsync(descriptor)

        def write_bytes(path: Path, data: Any) -> int:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                return torn_write(descriptor, data)
            finally:
                os.close(descriptor)

        os.pwrite, os.write, os.fsync = torn_pwrite, torn_write, counted_fsync  # type: ignore[assignment]
        Path.write_bytes = write_bytes  # type: ignore[method-assign,assignment]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES):
            self._pass(event)

    def _pass(self, event: str) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0 and self._kind == KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            if self._left <= 0 and self._kind == FULL and event in _NEEDS_ROOM:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def run_to(point: int, kind: str, act: Any) -> int:
    """Run `act` in a forked child up to a point, and return its exit code: 0 if it ended, OURS for a PentimentoError, 1
    for any other; negative for a signal. The caller has one thread."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        CrashPoint(point, kind).install()
        act()
        code = 0
    except PentimentoError:
        code = OURS
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        os._exit(code)
