"""A private PostgreSQL server for tests, from the binaries that Debian's package leaves on disk."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg

_PACKAGED = Path("/usr/lib/postgresql")


def find_binaries() -> Path | None:
    """The newest installed server's directory, None without one."""
    found = sorted(_PACKAGED.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def why_not() -> str:
    """Why no server can be started here; empty when one can."""
    if find_binaries() is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if os.geteuid() == 0 and not _has_user("postgres"):
        return "PostgreSQL refuses to run as root and there is no user postgres"
    return ""


@dataclass
class PostgresqlServer:
    """A running server that listens on a unix socket only."""

    socket_directory: Path
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def new_database(self) -> str:
        """Return the SQLAlchemy URL of an empty schema; a new database would take a second."""
        name = f"test_{next(self._numbers)}"
        with self._connect() as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"postgresql+psycopg://postgres@/postgres?host={self.socket_directory}&options=-csearch_path%3D{name}"

    def break_connections(self) -> None:
        """End every connection, as a restart of the server would."""
        with self._connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )

    def _connect(self) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(f"host={self.socket_directory} dbname=postgres user=postgres", autocommit=True)


@contextmanager
def running_server() -> Iterator[PostgresqlServer]:
    """Start a server in a new directory; stop it and delete the directory."""
    binaries = find_binaries()
    assert binaries is not None
    # Not below pytest's own directory: socket paths must be short, and its parents are closed to other users.
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        directory = Path(name)
        if os.geteuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
        data = directory / "data"
        spared = "-c fsync=off -c full_page_writes=off -c autovacuum=off"  # for power cuts and long runs
        soon = "-c deadlock_timeout=50ms"  # the search for a deadlock; 1 s by default
        options = f"-k {directory} -c listen_addresses='' -c max_connections=50 {spared} {soon}"
        _run(binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
        _run(binaries / "pg_ctl", "-D", data, "-w", "-o", options, "-l", directory / "log", "start")
        try:
            yield PostgresqlServer(directory)
        finally:
            _run(binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")


def _run(*command: str | Path) -> None:
    as_other = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups") if os.geteuid() == 0 else ()
    words = [*as_other, *map(str, command)]
    # Not captured through pipes: the server inherits them and would hold them open.
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
