"""Run frequent statements by the driver itself, each compiled once for a database.

SQLAlchemy's own execution costs two to five times as much as the run of such a statement.
"""

from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.exc import DBAPIError

T = TypeVar("T")


@dataclass(frozen=True)
class _Compiled:
    """Hold a statement for the driver. `places`: names of the parameters in their order, empty if they are passed by
    name; `constants`: values of the statement's own parameters; `row`: makes a row with the columns as attributes."""

    text: str
    places: tuple[str, ...]
    constants: Mapping[str, Any]
    row: Callable[..., Any]

    def parameters(self, values: Mapping[str, Any]) -> Any:
        """Return the driver's parameters for a run with these values of the bound parameters."""
        found = {**self.constants, **values} if self.constants else values
        return tuple([found[name] for name in self.places]) if self.places else found


class Statement:
    """Run the statement that `of_dialect` returns for a dialect's name. Every run gives values for the same names: the
    statement's bound parameters, and the columns that an INSERT or UPDATE sets. Thread-safe."""

    def __init__(self, of_dialect: Callable[[str], Any]) -> None:
        self._of_dialect = of_dialect
        self._compiled: dict[str, _Compiled] = {}

    def changed_count(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Run it in the connection's transaction and return how many rows it changed. Raises SQLAlchemy's errors."""
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
        if rows:
            compiled = self._in(connection.dialect, rows[0])
            given = [compiled.parameters(values) for values in rows]
            _use_driver(connection, compiled.text, lambda cursor: cursor.executemany(compiled.text, given))

    def read(self, engine: Engine, **values: Any) -> list[Any]:
        """Run a SELECT on a separate connection and return its rows, with the columns as attributes. One statement
        sees one state of the database without its own transaction. Raises SQLAlchemy's errors."""
        compiled = self._in(engine.dialect, values)
        given = compiled.parameters(values)
        try:
            with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(compiled.text, given)
                return [compiled.row(*row) for row in cursor.fetchall()]
        except engine.dialect.loaded_dbapi.Error as error:
            raise _hiding_values(compiled.text, error, engine.dialect) from error

    def _run(self, connection: Connection, values: Mapping[str, Any], take: Callable[[Any], T]) -> T:
        compiled = self._in(connection.dialect, values)
        return run_by_driver(connection, compiled.text, compiled.parameters(values), take)

    def _in(self, dialect: Dialect, names: Collection[str]) -> _Compiled:
        return self._compiled.get(dialect.name) or self._compile(dialect, names)

    def _compile(self, dialect: Dialect, names: Collection[str]) -> _Compiled:
        statement = self._of_dialect(dialect.name)
        made = statement.compile(dialect=dialect, column_keys=list(names) or None)
        constants = {name: value for name, value in made.params.items() if value is not None}
        columns = statement.selected_columns.keys() if statement.is_select else ()
        row: Any = namedtuple("Row", columns)  # type: ignore[misc]
        compiled = _Compiled(str(made), tuple(getattr(made, "positiontup", None) or ()), constants, row)
        return self._compiled.setdefault(dialect.name, compiled)


def run_by_driver(connection: Connection, text: str, parameters: Any, take: Callable[[Any], T]) -> T:
    """Run a statement on the driver's own cursor, in the connection's transaction, and return the result of `take` for
    the cursor. Raises SQLAlchemy's errors, without the parameters."""

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
        raise _hiding_values(text, error, dialect) from error


def _hiding_values(text: str, error: Any, dialect: Dialect) -> DBAPIError:
    """Return SQLAlchemy's error of a driver's, without the parameters: values of a statement reach no message."""
    hidden: DBAPIError = DBAPIError.instance(text, None, error, dialect.loaded_dbapi.Error, dialect=dialect)
    return hidden
