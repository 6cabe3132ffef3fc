"""How a ledger's database is opened, and what its errors become."""

import errno
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import exc, text

from pentimento.domain.errors import Internal, InvalidArgument, PentimentoError
from pentimento.stores.errors import StoreFull, StoreUnavailable
from pentimento.stores.ledger.database import LedgerContention, open_engine, typed_errors


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


def test_sqlite_writes_ahead_and_syncs_every_commit(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite")

    with engine.connect() as connection:
        found = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "auto_vacuum")
        }

    engine.dispose()
    # 2 is FULL, 2 of auto_vacuum INCREMENTAL.
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "auto_vacuum": 2}


def test_a_server_is_reached_by_its_url_and_waits_no_longer_than_said() -> None:
    engine = open_engine("postgresql+psycopg://user@host/name")

    assert (engine.dialect.name, engine.pool.size()) == ("postgresql", 4)  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", ["", "nonsense", "sqlite:///relative.sqlite", "sqlite://", "mysql://host/name"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="ledger_url"):
        open_engine(url)


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (wrapped(exc.DataError, ValueError("a secret value")), InvalidArgument),
        (OverflowError("a secret value"), InvalidArgument),
        (UnicodeEncodeError("utf-8", "a secret value", 0, 1, "no"), InvalidArgument),
        (wrapped(exc.IntegrityError, sqlite_error(sqlite3.SQLITE_CONSTRAINT)), Internal),
        (wrapped(exc.ProgrammingError, sqlite_error(sqlite3.SQLITE_ERROR)), Internal),
        (wrapped(exc.OperationalError, sqlite_error(sqlite3.SQLITE_FULL)), StoreFull),
        (wrapped(exc.OperationalError, PostgresqlError("53100")), StoreFull),
        (wrapped(exc.OperationalError, PostgresqlError("53200")), StoreFull),
        (wrapped(exc.OperationalError, PostgresqlError("40001")), LedgerContention),
        (wrapped(exc.OperationalError, PostgresqlError("40P01")), LedgerContention),
        (wrapped(exc.OperationalError, OSError(errno.ENOSPC, "a secret value")), StoreFull),
        (wrapped(exc.OperationalError, OSError(errno.EIO, "a secret value")), StoreUnavailable),
        (wrapped(exc.OperationalError, PostgresqlError("57P01")), StoreUnavailable),
        (wrapped(exc.OperationalError, sqlite_error(sqlite3.SQLITE_BUSY)), StoreUnavailable),
        (exc.TimeoutError("a secret value"), StoreUnavailable),
        (exc.InvalidRequestError("a secret value"), Internal),
    ],
)
def test_a_driver_s_error_becomes_ours_without_its_words(error: Exception, becomes: type[PentimentoError]) -> None:
    with pytest.raises(PentimentoError) as caught, typed_errors("journal"):
        raise error

    assert type(caught.value) is becomes
    assert "secret" not in caught.value.message
    assert "journal" in f"{caught.value.reason} {caught.value.message}"
