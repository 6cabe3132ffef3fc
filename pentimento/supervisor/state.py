"""Manage the state directory of a suite: its lock, its endpoint, and the short directory of its sockets.

A suite can be found even after its state directory was removed: by the processes that its supervisor started, and by a
second endpoint file next to the sockets.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.files.private_files import close_to_others, close_tree_to_others, make_private_directory, replace_file

MARK = "PENTIMENTO_SUITE"
# The pid of the supervisor that started the process.
SUPERVISOR = "PENTIMENTO_SUPERVISOR"


def marked_processes(state: Path) -> list[psutil.Process]:
    """Return this user's processes that a supervisor of this state directory started, with the services' children."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(state):
                found.append(process)
    return found


def live_supervisor(state: Path) -> int | None:
    """Return the pid of a supervisor that runs the suite of this state directory; None if there is none.

    Its own children identify it: Linux and macOS give the children of a dead supervisor another parent. So the answer
    holds even if the state directory, with its lock, has been removed.
    """
    for process in marked_processes(state):
        with contextlib.suppress(psutil.Error):
            if (parent := process.ppid()) and process.environ().get(SUPERVISOR) == str(parent):
                return parent
    return None


def clean_leftovers(state: Path, sockets: Path, wait_s: float = 5.0) -> int:
    """End the marked processes, remove their sockets, and return the number of processes. Call it with the lock held,
    after `live_supervisor` found none.

    They are killed, not drained: the dead supervisor took their terminal with it, and accepted requests are in the
    journal.
    """
    processes = marked_processes(state)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=wait_s)
    if sockets.is_dir() and not sockets.is_symlink():
        shutil.rmtree(sockets, ignore_errors=True)
    return len(processes)


DEFAULT_STATE = Path(".pentimento")
# A suite's folders in its state directory. Nothing else there is touched: the user may name any directory.
KEPT = ("logs", "objects", "index", "cells", "emulated")
ENDPOINT_FILE = "endpoint.json"
KEPT_FILES = ("lock", ENDPOINT_FILE, "*.sqlite", "*.sqlite-wal", "*.sqlite-shm")
# Linux limits the path of a unix socket to 107 bytes, macOS to 103; the longest name in the directory has 24.
MAX_SOCKET_DIRECTORY = 75
# Without the suffix `.sock`.
MAX_SOCKET_NAME = 19

LONGEST_LINE_BYTES = 4096


@dataclass(frozen=True)
class Endpoint:
    """Hold the addresses of a running suite, `unix:/path` or `host:port`. Empty if absent: `gateway`, `http` (host:port
    of the HTTP API) and `admin` (administration of tenants). The token file, if any, authorises status calls."""

    frontdoor: str
    public: str
    controller: str
    gateway: str
    service_token_file: str
    supervisor_pid: int
    http: str = ""
    admin: str = ""


class StateDirectory:
    """Manage the directory `path` of stores, logs, lock and endpoint file, and `sockets`, a short private directory
    elsewhere."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.logs = self.path / "logs"
        self.sockets = socket_directory(self.path)
        self._lock: int | None = None

    def acquire(self) -> None:
        """Lock the state directory until the process ends. Raises FailedPrecondition if another suite has it."""
        self.make()
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not take_exclusively(lock):
            owner = os.pread(lock, 32, 0).decode().strip() or "unknown"
            os.close(lock)
            raise self._taken(owner)
        # Do this first: until the lock names this process, readers trust the endpoint of a crashed supervisor.
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        if (running := live_supervisor(self.path)) is not None:
            os.close(lock)
            raise self._taken(str(running))
        self.withdraw()
        self._lock = lock

    def check_free(self) -> None:
        """Raise FailedPrecondition if a suite has the directory."""
        owner = self.owner()
        if owner is not None:
            raise self._taken(str(owner))

    def _taken(self, owner: str) -> FailedPrecondition:
        message = f"a suite already runs on {self.path} (pid {owner}): stop it, or name another --state-dir"
        return FailedPrecondition("SUITE_RUNNING", message)

    def make(self) -> None:
        """Create the directory, and close it and the suite's files in it to other users. Changes state."""
        make_private_directory(self.path)
        make_private_directory(self.logs)
        for kept in KEPT:
            if (self.path / kept).is_dir():
                close_tree_to_others(self.path / kept)
        for pattern in KEPT_FILES:
            for file in self.path.glob(pattern):
                close_to_others(file)

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def owner(self) -> int | None:
        """Return the pid of the supervisor that runs a suite here; None if there is none."""
        return self._lock_holder() or live_supervisor(self.path)

    def _lock_holder(self) -> int | None:
        try:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.pread(lock, 32, 0).decode().strip() or 0) or None
        else:
            return None
        finally:
            os.close(lock)

    def publish(self, endpoint: Endpoint) -> None:
        """Write the endpoint files, so that clients find the suite. Changes state."""
        for file in (file for file in self.endpoint_files if file.parent.is_dir()):
            replace_file(file, json.dumps(asdict(endpoint), indent=1) + "\n")

    def withdraw(self) -> None:
        """Remove the endpoint files, so that clients no longer find the suite. Changes state."""
        for file in self.endpoint_files:
            file.unlink(missing_ok=True)

    def endpoint(self) -> Endpoint | None:
        """Return the endpoint of the running suite; None without one, even if a crash left the file or half of it."""
        found = next(filter(None, map(_endpoint, self.endpoint_files)), None)
        return found if found is not None and found.supervisor_pid == self.owner() else None

    def last_lines(self) -> dict[str, str]:
        """Return the last log line of each process of the suite that holds the lock, by its name."""
        if not (self.path / "lock").exists():
            return {}
        since = (self.path / "lock").stat().st_mtime
        logs = (log for log in sorted(self.logs.glob("*.log")) if log.stat().st_mtime >= since)
        return {log.stem: last_line(log) for log in logs}

    @property
    def endpoint_files(self) -> tuple[Path, Path]:
        """Return the endpoint file, and its copy that outlives the state directory."""
        return self.path / ENDPOINT_FILE, self.sockets / ENDPOINT_FILE


def _endpoint(file: Path) -> Endpoint | None:
    """Return the endpoint in the file; None if the file is missing, incomplete or of another version."""
    try:
        return Endpoint(**json.loads(file.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def last_line(log: Path) -> str:
    """Return the last line of a file that may be large; empty for an empty file."""
    with log.open("rb") as file:
        file.seek(-min(log.stat().st_size, LONGEST_LINE_BYTES), os.SEEK_END)
        lines = file.read().decode(errors="replace").splitlines()
    return lines[-1] if lines else ""


def take_exclusively(lock: int, tries: int = 5) -> bool:
    """Take the lock, and return whether it was free. Try several times: `owner` holds it for a moment to test it."""
    for attempt in range(tries):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02 * (attempt + 1))
        else:
            return True
    return False


def socket_directory(state: Path) -> Path:
    """Return the socket directory of a state directory: stable, separate for each user, and always short. Raises
    InvalidArgument if every candidate is too long."""
    name = "pentimento-" + hashlib.sha256(f"{os.getuid()}:{state}".encode()).hexdigest()[:12]
    candidates = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]
    for base in candidates:
        if base and Path(base).is_dir() and len(f"{base}/{name}") <= MAX_SOCKET_DIRECTORY:
            return Path(base) / name
    raise InvalidArgument.of("TMPDIR", f"must be shorter than {MAX_SOCKET_DIRECTORY - len(name)} characters")


def make_private(directory: Path) -> None:
    """Create the directory for this user only. Raises FailedPrecondition for one that another user created."""
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if directory.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FailedPrecondition("SOCKETS_NOT_PRIVATE", f"{directory} must belong to this user alone; remove it")
