"""Create Unix socket files: private to their owner, not stolen from a living server, and removed at the end."""

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
    """Wrap the bind of a server: the path is free, its directory exists, and the socket will be mode 0600.

    gRPC unlinks any file at the path, so it is checked before. SettingsError if a server answers there, or the path
    leads to a file that is no socket.
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
    """Return the identity of the socket at the path, which differs from a later one of another server."""
    found = path.lstat()
    # File numbers are reused, by some file systems immediately.
    return path, found.st_dev, found.st_ino, found.st_mtime_ns


def remove_own(file: SocketFile) -> None:
    """Remove the socket, unless another server, which found no server answering, has replaced it."""
    path = file[0]
    # The next server takes over a socket that stays.
    with suppress(OSError), locked(path.parent):
        if socket_file(path) == file:
            path.unlink()


def private_directory(name: str) -> Path:
    """Return the directory of that name in the temporary one, private to this user. SettingsError if another user
    created it."""
    directory = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SettingsError(f"{directory} must be a directory of this user alone; remove it")
    return directory


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep two processes from checking and binding at the same time; held for the length of a bind."""
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
            # A full backlog or a forbidden path: a server exists.
            return True
        return True
