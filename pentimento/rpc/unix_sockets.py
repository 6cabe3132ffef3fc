"""Unix socket files: made for their owner alone, not stolen from a living server, not left behind."""

import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pentimento.settings import SettingsError

OWNER_ONLY_UMASK = 0o177


@contextmanager
def claimed_socket(path: Path) -> Iterator[None]:
    """Around the bind of a server: the path is free, its directory exists, and the socket will be mode 0600.

    gRPC unlinks whatever it finds at the path, hence the look before. SettingsError when a server answers there, or
    when the path leads to something that is no socket.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(path.parent):
        remove_stale(path)
        previous = os.umask(OWNER_ONLY_UMASK)
        try:
            yield
        finally:
            os.umask(previous)


SocketFile = tuple[Path, int, int, int]


def socket_file(path: Path) -> SocketFile:
    """Return what tells the socket at the path from one that another server puts there later."""
    found = path.lstat()
    # Numbers of files are given out again, and by some file systems at once.
    return path, found.st_dev, found.st_ino, found.st_mtime_ns


def remove_own(file: SocketFile) -> None:
    """Remove the socket, unless it is another server's by now, which found that nobody answers there any more."""
    path = file[0]
    # What stays is taken over by the next server.
    with suppress(OSError), locked(path.parent):
        if socket_file(path) == file:
            path.unlink()


def private_directory(name: str) -> Path:
    """Return the directory of that name among the temporary ones, made for this user alone. SettingsError when somebody
    else has made it."""
    directory = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SettingsError(f"{directory} must be a directory of this user alone; remove it")
    return directory


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keeps two processes from looking and binding at the same time; held for the length of a bind."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SettingsError(f"--listen unix:{path}: exists and is no socket")
    if is_answered(path):
        raise SettingsError(f"--listen unix:{path}: another process listens there")
    path.unlink(missing_ok=True)


def is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # A full backlog or a forbidden path: somebody is there.
            return True
        return True
