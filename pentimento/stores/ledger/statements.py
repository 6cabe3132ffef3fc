"""Run every statement of the ledgers by the driver itself, each compiled once for a database.

SQLAlchemy's own execution costs two to five times as much as the run of such a statement.
"""

import json
from collections import namedtuple
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from sqlalchemy import ColumnElement, Connection, Dialect, Engine, Table, bindparam
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import NullType

from pentimento.stores.ledger.errors import typed_errors

T = TypeVar("T")

_INSERTS: dict[str, Any] = {"sqlite": sqlite_insert, "postgresql": postgresql_insert}
# A transaction on its connection, or an engine: a separate connection for one statement that reads.
Source = Connection | Engine


class _ListType(NullType):
    """Mark a parameter that is a list."""


class _Among(ColumnElement[bool]):
    inherit_cache = False
    # SQLAlchemy would compare a boolean with 1 for SQLite, which then uses no index.
    type = NullType()  # type: ignore[assignment]

    def __init__(self, column: ColumnElement[Any], name: str) -> None:
        self.column = column
        self.values = bindparam(name, type_=_ListType())


@compiles(_Among)
def _compile_among(element: _Among, compiler: Any, **options: Any) -> str:
    column, values = compiler.process(element.column, **options), compiler.process(element.values, **options)
    if compiler.dialect.name == "sqlite":
        return f"({column} IN (SELECT value FROM json_each({values})))"
    return f"({column} = ANY({values}))"


def among(column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
    """Return the condition that a column has one of the values of the parameter `name`, a list of any length."""
    return _Among(column, name)


@dataclass
class _Compiled:
    """Hold a statement for the driver. `places`: names of the parameters in their order, empty if they are passed by
    name; `constants`: values of the statement's own parameters; `lists`: parameters that `dump` makes of a list."""

    text: str
    places: tuple[str, ...]
    constants: Mapping[str, Any]
    lists: tuple[str, ...]
    dump: Callable[[list[Any]], Any]
    row: Callable[..., Any] | None = None

    def parameters(self, values: Mapping[str, Any]) -> Any:
        """Return the driver's parameters for a run with these values of the bound parameters."""
        found = {**self.constants, **values} if self.constants else values
        if self.lists:
            found = {**found, **{name: self.dump(list(found[name])) for name in self.lists}}
        return tuple([found[name] for name in self.places]) if self.places else found

    def row_type(self, cursor: Any) -> Callable[..., Any]:
        """Return the type of the answer's rows, with the columns as attributes."""
        if self.row is None:
            names = [column[0] for column in cursor.description]
            found: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
            self.row = found._make
        return self.row


class Statement:
    """Run a statement. Every run gives values for the same names: the statement's bound parameters, and the columns
    that an INSERT or UPDATE sets. Thread-safe. Raises SQLAlchemy's errors, without the values, on a connection, and
    ours on an engine."""

    def __init__(self, statement: Any) -> None:
        """Take an SQLAlchemy statement, or a function that returns it for a dialect's name."""
        self._of_dialect: Callable[[str], Any] = statement if callable(statement) else lambda _: statement
        self._compiled: dict[str, _Compiled] = {}

    def change(self, connection: Connection, /, **values: Any) -> int:
        """Run it and return how many rows it changed."""
        return self._run(connection, values, lambda cursor, _: int(cursor.rowcount))

    def each(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it for each of the rows."""
        if rows:
            compiled = self._in(connection.dialect, rows[0])
            given = [compiled.parameters(values) for values in rows]
            _use_driver(connection, compiled.text, lambda cursor: cursor.executemany(compiled.text, given))

    def rows(self, source: Source, /, **values: Any) -> list[Any]:
        """Run it and return all rows of its answer, with the columns as attributes."""
        return self._run(source, values, lambda cursor, made: [*map(made.row_type(cursor), cursor.fetchall())])

    def first(self, source: Source, /, **values: Any) -> Any | None:
        """Run it and return the first row of its answer; None without rows."""
        return next(iter(self.rows(source, **values)), None)

    def scalars(self, source: Source, /, **values: Any) -> list[Any]:
        """Run it and return the first column of its answer."""
        return self._run(source, values, lambda cursor, _: [row[0] for row in cursor.fetchall()])

    def scalar(self, source: Source, /, **values: Any) -> Any:
        """Run it and return the first value of its answer; None without rows."""
        return next(iter(self.scalars(source, **values)), None)

    def _run(self, source: Source, values: Mapping[str, Any], take: Callable[[Any, _Compiled], T]) -> T:
        compiled = self._in(source.dialect, values)
        given = compiled.parameters(values)

        def use(cursor: Any) -> T:
            cursor.execute(compiled.text, given)
            return take(cursor, compiled)

        return _use_driver(source, compiled.text, use)

    def _in(self, dialect: Dialect, names: Collection[str]) -> _Compiled:
        return self._compiled.get(dialect.name) or self._compile(dialect, names)

    def _compile(self, dialect: Dialect, names: Collection[str]) -> _Compiled:
        made = self._of_dialect(dialect.name).compile(dialect=dialect, column_keys=list(names) or None)
        constants = {name: bound.value for bound, name in made.bind_names.items() if not bound.required}
        lists = [name for bound, name in made.bind_names.items() if isinstance(bound.type, _ListType)]
        places = tuple(getattr(made, "positiontup", None) or ())
        dump: Callable[[list[Any]], Any] = json.dumps if dialect.name == "sqlite" else list
        compiled = _Compiled(str(made), places, constants, tuple(lists), dump)
        return self._compiled.setdefault(dialect.name, compiled)


def insert_unless_present(table: Table) -> Statement:
    """Return the statement that inserts a row, and returns its primary key; nothing, without a change, if it collides
    with another row on any unique key."""
    return Statement(lambda dialect: _INSERTS[dialect](table).on_conflict_do_nothing().returning(*table.primary_key))


def run_by_driver(connection: Connection, text: str) -> None:
    """Run the text of a statement on the driver's own cursor, in the connection's transaction."""
    _use_driver(connection, text, lambda cursor: cursor.execute(text))


def _use_driver(source: Source, text: str, use: Callable[[Any], T]) -> T:
    """Return the result of `use` for a cursor of the driver. Raises its errors as SQLAlchemy's, without the parameters:
    values of a statement reach no message."""
    if isinstance(source, Engine):
        with typed_errors(), closing(_separate(source, text)) as separate:
            return _use_cursor(separate, source.dialect, text, use)
    try:
        return _use_cursor(source.connection, source.dialect, text, use)
    except DBAPIError as error:
        if source.dialect.is_disconnect(cast(Any, error.orig), source.connection.driver_connection, None):
            # As in SQLAlchemy: a broken connection never returns to the pool.
            with suppress(Exception):
                source.invalidate(error)
        raise


def _separate(engine: Engine, text: str) -> Any:
    """Return a connection of the pool. SQLAlchemy alone would raise the driver's errors here."""
    try:
        return engine.raw_connection()
    except engine.dialect.loaded_dbapi.Error as error:
        raise _named(error, engine.dialect, text) from error


def _use_cursor(driver: Any, dialect: Dialect, text: str, use: Callable[[Any], T]) -> T:
    try:
        with closing(driver.cursor()) as cursor:
            return use(cursor)
    except dialect.loaded_dbapi.Error as error:
        raise _named(error, dialect, text) from error


def _named(error: Exception, dialect: Dialect, text: str) -> Exception:
    """Return SQLAlchemy's error for the driver's."""
    return DBAPIError.instance(text, None, error, dialect.loaded_dbapi.Error, dialect=dialect)
