"""Run a statement of every request in the writer's transaction: compiled once, and run by the driver itself."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError

from pentimento.stores.ledger.compiled_statement import CompiledStatement, compile_statement

T = TypeVar("T")


class PreparedWrite:
    """Run a statement without SQLAlchemy's overhead, which costs two to four times as much as the run. It runs in the
    transaction of the given connection. Thread-safe."""

    def __init__(self, of_dialect: Callable[[str], Any], columns: Sequence[str] = ()) -> None:
        """Prepare the statement that `of_dialect` returns for a dialect's name. `columns`: set by an INSERT or UPDATE
        from the values of each run, in addition to the statement's bound parameters."""
        self._of_dialect = of_dialect
        self._columns = tuple(columns)
        self._compiled: dict[str, CompiledStatement] = {}

    def changed_count(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Run it and return how many rows it changed. Raises SQLAlchemy's errors."""
        return self._run(connection, values, lambda cursor: int(cursor.rowcount))

    def first(self, connection: Connection, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Run it and return the first row of its answer; None without rows. Raises as `changed_count`."""
        row: tuple[Any, ...] | None = self._run(connection, values, lambda cursor: cursor.fetchone())
        return row

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run it and return all rows of its answer. Raises as `changed_count`."""
        return list(self._run(connection, values, lambda cursor: cursor.fetchall()))

    def each(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it for each of the rows. Raises as `changed_count`."""
        compiled = self._in(connection.dialect)
        given = [compiled.parameters(values) for values in rows]
        _use_driver(connection, compiled.text, lambda cursor: cursor.executemany(compiled.text, given))

    def text(self, dialect: Dialect) -> str:
        """Return the statement's text for the driver of that dialect."""
        return self._in(dialect).text

    def _run(self, connection: Connection, values: Mapping[str, Any], take: Callable[[Any], T]) -> T:
        compiled = self._in(connection.dialect)
        return run_by_driver(connection, compiled.text, compiled.parameters(values), take)

    def _in(self, dialect: Dialect) -> CompiledStatement:
        return self._compiled.get(dialect.name) or self._compile(dialect)

    def _compile(self, dialect: Dialect) -> CompiledStatement:
        made = compile_statement(self._of_dialect(dialect.name), dialect, self._columns)
        return self._compiled.setdefault(dialect.name, made)


def run_by_driver(connection: Connection, text: str, parameters: Any, take: Callable[[Any], T]) -> T:
    """Run a statement on the driver's own cursor, in the connection's transaction, and return the result of `take` for
    the cursor. Raises SQLAlchemy's errors, without the parameters: values of a statement reach no message."""

    def run(cursor: Any) -> T:
        cursor.execute(text, parameters)
        return take(cursor)

    return _use_driver(connection, text, run)


def _use_driver(connection: Connection, text: str, use: Callable[[Any], T]) -> T:
    dialect = connection.dialect
    driver: Any = connection.connection
    try:
        with closing(driver.cursor()) as cursor:
            return use(cursor)
    except dialect.loaded_dbapi.Error as error:
        if dialect.is_disconnect(error, driver.driver_connection, None):
            # As in SQLAlchemy: a broken connection never returns to the pool.
            with suppress(Exception):
                connection.invalidate(error)
        raise DBAPIError.instance(text, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
