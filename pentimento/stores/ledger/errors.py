"""Raise the errors of SQLAlchemy and its drivers as ours."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from pentimento.domain.errors import Internal, InvalidArgument, PentimentoError
from pentimento.stores.errors import StoreFull, StoreUnavailable

# SQLSTATEs: disk full and out of memory; serialisation failure and deadlock.
_POSTGRESQL_FULL = frozenset({"53100", "53200"})
_POSTGRESQL_CONTENTION = frozenset({"40001", "40P01"})
# The last one: no room for the shared memory file next to the database.
_SQLITE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})


class LedgerContention(StoreUnavailable):
    """Report that another process's transaction blocked this one and won: the same work succeeds when it is run
    again."""


@contextmanager
def typed_errors(store: str = "ledger") -> Iterator[None]:
    """Turn SQLAlchemy's errors into ours; values of a statement never reach a message."""
    try:
        yield
    except DataError as error:
        raise InvalidArgument.of(store, f"a value cannot be stored: {_words(error)}") from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidArgument.of(store, f"a value cannot be stored: {type(error).__name__}") from error
    except (IntegrityError, ProgrammingError) as error:
        raise Internal("LEDGER_DEFECT", f"{store}: {_words(error)}") from error
    except DBAPIError as error:
        raise _typed(store, error) from error
    except OSError as error:
        # psycopg waits for a new connection with a selector, which needs a descriptor.
        full = StoreFull if error.errno == errno.ENOSPC else StoreUnavailable
        raise full(store, errno.errorcode.get(error.errno or 0, type(error).__name__)) from error
    except PoolTimeoutError as error:
        raise StoreUnavailable(store, "no connection is free") from error
    except SQLAlchemyError as error:
        raise Internal("LEDGER_DEFECT", f"{store}: {type(error).__name__}") from error


def _typed(store: str, error: DBAPIError) -> PentimentoError:
    if _is_full(error.orig):
        return StoreFull(store, _words(error))
    if getattr(error.orig, "sqlstate", None) in _POSTGRESQL_CONTENTION:
        return LedgerContention(store, _words(error))
    return StoreUnavailable(store, _words(error))


def _is_full(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) in _SQLITE_FULL
    if isinstance(error, OSError):
        return error.errno == errno.ENOSPC
    return getattr(error, "sqlstate", None) in _POSTGRESQL_FULL


def _words(error: DBAPIError) -> str:
    """Return the kind of error and its code, never the driver's text, which may quote the values."""
    original = error.orig
    code = getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", None)
    return f"{type(original).__name__}{f' ({code})' if code else ''}"
