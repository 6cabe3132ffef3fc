"""Copy a whole ledger to a file and back: SQLite by its backup API, PostgreSQL by `pg_dump` and `pg_restore`. A copy
has every transaction that was committed before one moment, and none after it; processes may use the ledger meanwhile.
"""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, column, func, inspect, make_url, select, table
from sqlalchemy.exc import ArgumentError

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.files.private_files import flush, make_private_directory
from pentimento.stores.errors import StoreUnavailable, disk_errors
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.errors import typed_errors
from pentimento.stores.ledger.statements import Statement

_COMPONENTS = "SELECT component FROM schema_versions WHERE version > 0"
_STORED_COMPONENTS = Statement(
    select(column("component")).select_from(table("schema_versions")).where(column("version") > 0)
)
_SCHEMA = Statement(select(func.current_schema()))


def kind_of(url: str) -> str:
    """Return `sqlite` or `postgresql`. Raises InvalidArgument for another url; nothing is opened."""
    return "sqlite" if _sqlite_file(url) else "postgresql"


def copy_ledger(url: str, file: Path) -> list[str]:
    """Write a copy of the ledger to a new file, and return its components. Raises FailedPrecondition NO_LEDGER,
    LEDGER_DAMAGED or PROGRAM_MISSING, StoreUnavailable."""
    if path := _sqlite_file(url):
        return _copy_sqlite(path, file)
    with _connected(url) as connection:
        if not inspect(connection).has_table("schema_versions"):
            raise _no_ledger()
        components = [str(name) for name in _STORED_COMPONENTS.scalars(connection)]
    # The flag takes a pattern; quotes turn its wildcards off.
    _run("pg_dump", url, '--schema="{schema}"', "--format=custom", f"--file={file}")
    flush(file)
    return components


def restore_ledger(url: str, file: Path) -> None:
    """Write the copy to the empty place at `url` (`require_empty`), whole or not at all."""
    if path := _sqlite_file(url):
        with disk_errors("ledger"):
            make_private_directory(path.parent)
            fresh = path.with_name(f"{path.name}.restored")
            shutil.copyfile(file, fresh)
            fresh.chmod(0o600)
            flush(fresh)
            fresh.rename(path)
            flush(path.parent)
        return
    _run("pg_restore", url, "--schema={schema}", "--single-transaction", "--no-owner", "--no-privileges", str(file))
    with _connected(url) as connection:
        if not inspect(connection).has_table("schema_versions"):
            raise FailedPrecondition("BACKUP_OF_OTHER_STORES", "ledger_url: the backup is of a schema of another name")


def require_empty(url: str) -> None:
    """Check that there is no ledger at `url`. Raises FailedPrecondition TARGET_NOT_EMPTY."""
    if path := _sqlite_file(url):
        # An earlier log would be replayed into the restored file.
        found = [each.name for suffix in ("", "-wal", "-shm") if (each := Path(f"{path}{suffix}")).exists()]
    else:
        with _connected(url) as connection:
            found = sorted(inspect(connection).get_table_names())
    if found:
        raise FailedPrecondition("TARGET_NOT_EMPTY", f"ledger_url: must name an empty place, it has {found[0]}")


def _sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite url; None for PostgreSQL. `open_engine` would create the file."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidArgument.of("ledger_url", "must be a database url") from None
    if parsed.drivername == "sqlite" and Path(parsed.database or "").is_absolute():
        return Path(str(parsed.database))
    if parsed.drivername != "postgresql+psycopg":
        limit = "must be sqlite:////absolute/path or postgresql+psycopg://…"
        raise InvalidArgument.of("ledger_url", f"{limit}, got {parsed.drivername!r}")
    return None


def _copy_sqlite(path: Path, file: Path) -> list[str]:
    if not path.is_file():
        raise _no_ledger()
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(file)) as copy,
        ):
            # All pages in one step, so that no writer makes it start again.
            source.backup(copy)
            # The copy is one file without a log next to it.
            copy.execute("PRAGMA journal_mode=DELETE")
            ((found,),) = copy.execute("PRAGMA quick_check(1)")
            if found != "ok":
                raise FailedPrecondition("LEDGER_DAMAGED", f"ledger_url: SQLite reports {found}")
            if not copy.execute("SELECT 1 FROM sqlite_schema WHERE name = 'schema_versions'").fetchone():
                raise _no_ledger()
            components = [str(name) for (name,) in copy.execute(_COMPONENTS)]
    except sqlite3.Error as error:
        raise StoreUnavailable("ledger", f"{type(error).__name__}: {error}") from error
    flush(file)
    return components


def _no_ledger() -> FailedPrecondition:
    return FailedPrecondition("NO_LEDGER", "ledger_url: must name a ledger, there is none")


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    engine = open_engine(url)
    try:
        with typed_errors(), engine.connect().execution_options(reads_only=True) as connection:
            yield connection
    finally:
        engine.dispose()


def _run(program: str, url: str, schema_flag: str, *arguments: str) -> None:
    """Run a client program of PostgreSQL on the current schema of the database at `url`."""
    from psycopg.conninfo import make_conninfo

    with _connected(url) as connection:
        schema = _SCHEMA.scalar(connection)
        place = connection.dialect.create_connect_args(connection.engine.url)[1]
    # Every user of the host can read a process's arguments.
    password = {"PGPASSWORD": str(place.pop("password"))} if "password" in place else {}
    # SQLAlchemy's own adapters of types.
    place.pop("context", None)
    place["target_session_attrs"] = "read-write"
    command = [program, f"--dbname={make_conninfo(**place)}", schema_flag.format(schema=schema), *arguments]
    try:
        done = subprocess.run(command, env={**os.environ, **password}, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        message = f"{program} is not installed: it is in PostgreSQL's client package, of the server's version or newer"
        raise FailedPrecondition("PROGRAM_MISSING", message) from None
    if done.returncode:
        words = " ".join(done.stderr.strip().splitlines()[-2:])
        raise StoreUnavailable("ledger", f"{program} ended with {done.returncode}: {words[:400]}")
