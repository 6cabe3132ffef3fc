"""Open a ledger's database, and convert its errors."""

import errno
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn
from sqlalchemy import Engine, event, exc, text
from sqlalchemy.dialects import postgresql

from pentimento.domain.errors import Internal, InvalidArgument, PentimentoError
from pentimento.stores.errors import SchemaMismatch, StoreFull, StoreUnavailable
from pentimento.stores.ledger import database
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.errors import LedgerContention, typed_errors
from pentimento.stores.ledger.journal import requests

UNREACHED = "ledger cannot be reached: "
BAD_PORT = "postgresql+psycopg://host:port/name"


class PostgresqlError(Exception):
    """A driver's error with its state."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("a secret value")
        self.sqlstate = sqlstate


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("a secret value")
    error.sqlite_errorcode = code
    return error


def wrapped(kind: type[exc.DBAPIError], orig: BaseException) -> exc.DBAPIError:
    return kind("INSERT a secret value", {}, orig)


def test_open_engine_sqlite_pragmas(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite")

    with engine.connect() as connection:
        found = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in (
                "journal_mode",
                "synchronous",
                "foreign_keys",
                "auto_vacuum",
                "journal_size_limit",
                "cache_size",
                "busy_timeout",
            )
        }

    engine.dispose()
    # 2 is FULL, 2 of auto_vacuum INCREMENTAL.
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "auto_vacuum": 2,
        "journal_size_limit": 16 << 20,
        "cache_size": -512,
        "busy_timeout": 5000,
    }


@pytest.mark.parametrize("take_away", [Path.unlink, lambda path: Path(shutil.copy(path, f"{path}-new")).replace(path)])
def test_commit_into_removed_file_is_unavailable(take_away: Callable[[Path], object], tmp_path: Path) -> None:
    """Data of such a commit would be lost with the process."""
    file = tmp_path / "ledger.sqlite"
    engine = open_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (x BIGINT)"))
    take_away(file)

    for _ in ("on the connection that is open", "on another one"):
        with pytest.raises(StoreUnavailable, match="restart"), typed_errors(), engine.begin() as connection:
            connection.execute(text("INSERT INTO t (x) VALUES (1)"))
        engine.dispose()


def test_open_engine_url_sets_busy_timeout(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite?timeout=0.25")

    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA busy_timeout")).scalar_one() == 250

    engine.dispose()


def test_writer_locks_before_it_reads_and_reader_never(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite")
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", timeout=0.0, isolation_level=None)) as other:
        with engine.connect().execution_options(reads_only=True) as reader:
            reader.execute(text("SELECT * FROM sqlite_schema"))
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        with engine.begin(), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    engine.dispose()


def test_new_connection_reads_during_other_write(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite?timeout=0"
    writer, reader = open_engine(url), open_engine(url)
    with writer.begin() as connection:
        connection.execute(text("CREATE TABLE kept (number INTEGER)"))

    with writer.begin(), reader.connect().execution_options(reads_only=True) as connection:
        found = connection.execute(text("SELECT count(*) FROM kept")).scalar_one()
        auto_vacuum = connection.execute(text("PRAGMA auto_vacuum")).scalar_one()

    writer.dispose()
    reader.dispose()
    # 2 is INCREMENTAL, as the file was created.
    assert (found, auto_vacuum) == (0, 2)


def test_open_engine_server_timeouts() -> None:
    engine = open_engine("postgresql+psycopg://user@host/name")

    assert waits(engine) == (5, 10_000, "-c statement_timeout=10000 -c idle_in_transaction_session_timeout=10000")


def test_open_engine_url_sets_server_timeouts() -> None:
    options = "options=-csearch_path%3Dours%20-cstatement_timeout%3D1"
    engine = open_engine(f"postgresql+psycopg://user@host/name?connect_timeout=1&{options}")

    ours = "-c statement_timeout=10000 -c idle_in_transaction_session_timeout=10000"
    assert waits(engine) == ("1", 10_000, f"{ours} -csearch_path=ours -cstatement_timeout=1")


def test_open_engine_server_probes_dead_host_soon() -> None:
    """No bytes are in flight then that could time out: without probes the system waits for two hours."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        engine = open_engine(f"postgresql+psycopg://user@127.0.0.1:{server.getsockname()[1]}/name")
        seen = connection_parameters(engine)
        told = {name: str(value) for name, value in seen.items() if isinstance(value, str | int)}
        begun = PGconn.connect_start(make_conninfo(**told).encode())
        with socket.socket(fileno=os.dup(begun.socket)) as ours:
            is_probed = ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
            idle_s, interval_s, count = (ours.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names)
        begun.finish()

    assert is_probed and idle_s + interval_s * count <= 15


def waits(engine: Engine) -> tuple[object, ...]:
    """Return the timeouts of its connections."""
    seen = connection_parameters(engine)
    return tuple(seen.get(name) for name in ("connect_timeout", "tcp_user_timeout", "options"))


def connection_parameters(engine: Engine) -> dict[str, object]:
    """Return the parameters of its connections."""
    seen: dict[str, object] = {}

    class NotReached(Exception):
        pass

    def look(_dialect: object, _record: object, _arguments: object, parameters: dict[str, object]) -> None:
        seen.update(parameters)
        raise NotReached

    event.listen(engine, "do_connect", look)
    with pytest.raises(NotReached):
        engine.connect()
    return seen


def test_open_engine_refuses_other_databases() -> None:
    for url in ("", "nonsense", "sqlite:///relative", "sqlite://", "mysql://x", "postgresql://x/y", BAD_PORT):
        with pytest.raises(InvalidArgument) as refused:
            open_engine(url)

        assert [violation.field for violation in refused.value.violations] == ["ledger_url"]


KINDS: list[tuple[Exception, type[PentimentoError]]] = [
    (wrapped(exc.DataError, ValueError("a secret value")), InvalidArgument),
    (OverflowError("a secret value"), InvalidArgument),
    (UnicodeEncodeError("utf-8", "a secret value", 0, 1, "no"), InvalidArgument),
    (wrapped(exc.IntegrityError, sqlite_error(sqlite3.SQLITE_CONSTRAINT)), Internal),
    (wrapped(exc.ProgrammingError, sqlite_error(sqlite3.SQLITE_ERROR)), Internal),
    (wrapped(exc.OperationalError, sqlite_error(sqlite3.SQLITE_FULL)), StoreFull),
    (wrapped(exc.OperationalError, sqlite_error(sqlite3.SQLITE_IOERR_WRITE)), StoreFull),
    (wrapped(exc.OperationalError, sqlite_error(sqlite3.SQLITE_IOERR_SHMSIZE)), StoreFull),
    (wrapped(exc.OperationalError, sqlite_error(sqlite3.SQLITE_IOERR_READ)), StoreUnavailable),
    (wrapped(exc.OperationalError, PostgresqlError("53100")), StoreFull),
    (wrapped(exc.OperationalError, PostgresqlError("53200")), StoreFull),
    (wrapped(exc.OperationalError, PostgresqlError("40001")), LedgerContention),
    (wrapped(exc.OperationalError, PostgresqlError("40P01")), LedgerContention),
    (wrapped(exc.OperationalError, OSError(errno.ENOSPC, "a secret value")), StoreFull),
    (wrapped(exc.OperationalError, OSError(errno.EIO, "a secret value")), StoreUnavailable),
    (OSError(errno.ENOSPC, "a secret value"), StoreFull),
    (OSError(errno.EMFILE, "a secret value"), StoreUnavailable),
    (wrapped(exc.OperationalError, PostgresqlError("57P01")), StoreUnavailable),
    (wrapped(exc.OperationalError, sqlite_error(sqlite3.SQLITE_BUSY)), StoreUnavailable),
    (exc.TimeoutError("a secret value"), StoreUnavailable),
    (exc.InvalidRequestError("a secret value"), Internal),
]
WORDS = [
    (wrapped(exc.DataError, ValueError("a")), "INVALID_FIELD", "ledger: a value cannot be stored: ValueError"),
    (OverflowError("a"), "INVALID_FIELD", "ledger: a value cannot be stored: OverflowError"),
    (wrapped(exc.ProgrammingError, PostgresqlError("42P01")), "LEDGER_DEFECT", "ledger: PostgresqlError (42P01)"),
    (exc.InvalidRequestError("a"), "LEDGER_DEFECT", "ledger: InvalidRequestError"),
    (wrapped(exc.DBAPIError, PostgresqlError("40001")), "STORE_UNAVAILABLE", UNREACHED + "PostgresqlError (40001)"),
    (wrapped(exc.DBAPIError, PostgresqlError("53100")), "STORE_FULL", "ledger is full: PostgresqlError (53100)"),
    (OSError(errno.EMFILE, "a"), "STORE_UNAVAILABLE", UNREACHED + "EMFILE"),
    (exc.TimeoutError("a"), "STORE_UNAVAILABLE", UNREACHED + "no connection is free"),
]


def raised_for(error: Exception, name: str) -> PentimentoError:
    with pytest.raises(PentimentoError) as caught, typed_errors(name):
        raise error
    return caught.value


def test_typed_errors_of_driver_errors_hide_values() -> None:
    for error, becomes in KINDS:
        found = raised_for(error, "journal")

        assert type(found) is becomes, error
        assert "secret" not in found.message
        assert "journal" in f"{found.reason} {found.message}"


def test_typed_errors_name_kind_and_code() -> None:
    found = [raised_for(error, "ledger") for error, _, _ in WORDS]

    assert [(error.reason, error.message) for error in found] == [(reason, message) for _, reason, message in WORDS]


def test_open_engine_keeps_four_connections(tmp_path: Path) -> None:
    engines = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite"), open_engine("postgresql+psycopg://user@host/name")

    assert [engine.pool.size() for engine in engines] == [4, 4]  # type: ignore[attr-defined]
    assert engines[1].pool._pre_ping


def test_open_engine_keeps_mode_of_directory(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    (tmp_path / "shared").chmod(0o755)

    open_engine(f"sqlite:///{tmp_path}/shared/ledger.sqlite").dispose()

    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755


def test_newest_epoch_is_locked_on_server() -> None:
    statement = requests._NEWEST_EPOCH._in(postgresql.dialect(paramstyle="pyformat"), ()).text

    assert statement.endswith("FOR SHARE")


def test_prepare_sqlite_without_write_ahead_is_refused(tmp_path: Path) -> None:
    class OldFileSystem(sqlite3.Connection):
        def execute(self, statement: str, *parameters: object) -> sqlite3.Cursor:
            return super().execute(statement.replace("=WAL", "=DELETE"), *parameters)

    with (
        closing(sqlite3.connect(tmp_path / "ledger.sqlite", factory=OldFileSystem)) as connection,
        pytest.raises(SchemaMismatch, match="cannot use write-ahead logging"),
    ):
        database._prepare_sqlite(connection, None)


def test_pool_returns_last_used_connection(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite")
    first, last = engine.raw_connection(), engine.raw_connection()
    wanted = last.driver_connection
    first.close()
    last.close()

    with closing(engine.raw_connection()) as connection:
        got = connection.driver_connection
    engine.dispose()

    assert got is wanted
