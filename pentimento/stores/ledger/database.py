"""Open SQLite or PostgreSQL behind one SQLAlchemy engine."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from pentimento.domain.errors import InvalidArgument
from pentimento.files.private_files import close_to_others, make_private_directory
from pentimento.stores.errors import SchemaMismatch, StoreUnavailable
from pentimento.stores.ledger.statements import run_by_driver

# A ledger's statement takes milliseconds: a longer wait means a fault. A url may set another timeout.
_BUSY_TIMEOUT_S = 5
# The write-ahead log shrinks to this size after growth.
_WAL_BYTES = 16 << 20
# Per connection; the operating system also caches the file's pages. 2 MiB, SQLite's default, finds rows no faster.
_PAGE_CACHE_KIB = 512
_POSTGRESQL_ARGUMENTS = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    # Without probes a host that dies during a statement goes unnoticed: no data are left unacknowledged.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    # Connect to the writable one of several hosts: it changes after a failover.
    "target_session_attrs": "read-write",
}
# A process that stops during a transaction, as a frozen host does, holds its rows until the server ends it: a standby
# could not take over.
_POSTGRESQL_OPTIONS = "-c statement_timeout=10000 -c idle_in_transaction_session_timeout=10000"


def open_engine(url: str, setting: str = "ledger_url") -> Engine:
    """Return an engine for `sqlite:////absolute/path` or `postgresql+psycopg://user@host/database?passfile=…`.

    SQLite runs in WAL mode with `synchronous=FULL`: a commit that returned survives a power cut, as in PostgreSQL.
    Raises InvalidArgument, which names the setting, for any other url. The first use connects.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidArgument.of(setting, "must be a database url") from None
    if parsed.drivername == "sqlite" and parsed.database and Path(parsed.database).is_absolute():
        return _open_sqlite(parsed)
    if parsed.drivername == "postgresql+psycopg":
        arguments = {name: value for name, value in _POSTGRESQL_ARGUMENTS.items() if name not in parsed.query}
        # The server applies the last value of each option.
        options = " ".join([_POSTGRESQL_OPTIONS, *parsed.normalized_query.get("options", ())])
        return create_engine(parsed, connect_args=arguments | {"options": options}, pool_pre_ping=True, pool_size=4)
    raise InvalidArgument.of(
        setting, f"must be sqlite:////absolute/path or postgresql+psycopg://…, got {parsed.drivername!r}"
    )


def lift_time_limit(connection: Connection) -> None:
    """Let the transaction's statements run without a time limit: the tables may be large."""
    # SQLite has no limit.
    if connection.dialect.name == "postgresql":
        run_by_driver(connection, "SET LOCAL statement_timeout = 0")


def _open_sqlite(url: URL) -> Engine:
    _make_private_file(Path(str(url.database)))
    arguments = {} if "timeout" in url.query else {"timeout": _BUSY_TIMEOUT_S}
    # Reuse the connection that was used last: it has cached the pages that are read repeatedly.
    engine = create_engine(url, connect_args=arguments, pool_size=4, pool_use_lifo=True)
    file = _OneFile(Path(str(url.database)))
    event.listen(engine, "connect", file.require)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", file.require_of_writer)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


class _OneFile:
    """Check that the database is the file that the first connection opened. After a removal or replacement, commits
    would go to a file that no process finds again; connections to both files would mix their logs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: tuple[int, int] | None = None

    def require(self, *_connected: object) -> None:
        """Check that the file is still the same. Raises StoreUnavailable."""
        found = self._found()
        self._opened = self._opened or found
        if found != self._opened:
            raise StoreUnavailable("ledger", "its file was removed or replaced while it was open: restart")

    def require_of_writer(self, connection: Connection) -> None:
        """Check the file before a transaction that writes. Raises StoreUnavailable."""
        if not _reads_only(connection):
            self.require()

    def _found(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        except OSError:
            return self._opened
        return status.st_dev, status.st_ino


def _make_private_file(path: Path) -> None:
    """Create the file, and a missing directory, with private rights, which SQLite copies to its logs. The connection
    reports any failure."""
    with suppress(OSError):
        if not path.parent.is_dir():
            make_private_directory(path.parent)
        path.touch(mode=0o600)
        for file in path.parent.glob(f"{path.name}*"):
            close_to_others(file)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # Transactions are begun by hand below: the driver's own rules would leave savepoints outside of a transaction.
    connection.isolation_level = None
    # Affects new files only; an old file reuses its free pages and keeps its size. In any file the pragma waits for the
    # current writer, and a connection that only reads must not wait.
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    if connection.execute("PRAGMA journal_mode=WAL").fetchone() != ("wal",):
        raise SchemaMismatch("ledger", "SQLite cannot use write-ahead logging on this file system")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(f"PRAGMA journal_size_limit={_WAL_BYTES}")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute(f"PRAGMA cache_size=-{_PAGE_CACHE_KIB}")


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes its lock immediately: a later upgrade of a read lock could fail while another process writes.
    run_by_driver(connection, "BEGIN" if _reads_only(connection) else "BEGIN IMMEDIATE")


def _reads_only(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get("reads_only", False))
