"""A statement that every request makes in the writer's transaction: compiled once, and run by the driver itself."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError

T = TypeVar("T")


@dataclass(frozen=True)
class _Compiled:
    """What the driver is given. `places`: names of the parameters in their order, none where they go by name;
    `constants`: values of the statement's own parameters."""

    text: str
    places: tuple[str, ...]
    constants: Mapping[str, Any]

    def parameters(self, values: Mapping[str, Any]) -> Any:
        found = {**self.constants, **values} if self.constants else values
        return tuple([found[name] for name in self.places]) if self.places else found


class PreparedWrite:
    """A statement without what SQLAlchemy does around each run, which costs two to four times as much as the run. It
    runs in the transaction of the connection that it is given. Thread-safe."""

    def __init__(self, of_dialect: Callable[[str], Any], columns: Sequence[str] = ()) -> None:
        """`of_dialect` gives the statement for the name of a dialect. `columns`: those that an INSERT or UPDATE sets
        from the values of each run, besides the statement's bound parameters."""
        self._of_dialect = of_dialect
        self._columns = tuple(columns)
        self._compiled: dict[str, _Compiled] = {}

    def changed_count(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Run it and return how many rows it changed. Raises SQLAlchemy's errors, as its own runs do."""
        return self._run(connection, values, lambda cursor: int(cursor.rowcount))

    def first(self, connection: Connection, values: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Run it and return the first row of its answer; None where there is none. Raises as `changed_count`."""
        row: tuple[Any, ...] | None = self._run(connection, values, lambda cursor: cursor.fetchone())
        return row

    def text(self, dialect: Dialect) -> str:
        """Return what the driver of that dialect is given."""
        return self._in(dialect).text

    def _run(self, connection: Connection, values: Mapping[str, Any], take: Callable[[Any], T]) -> T:
        compiled = self._in(connection.dialect)
        return run_by_driver(connection, compiled.text, compiled.parameters(values), take)

    def _in(self, dialect: Dialect) -> _Compiled:
        return self._compiled.get(dialect.name) or self._compile(dialect)

    def _compile(self, dialect: Dialect) -> _Compiled:
        made = self._of_dialect(dialect.name).compile(dialect=dialect, column_keys=self._columns or None)
        constants = {name: value for name, value in made.params.items() if value is not None}
        found = _Compiled(str(made), tuple(getattr(made, "positiontup", None) or ()), constants)
        return self._compiled.setdefault(dialect.name, found)


def run_by_driver(connection: Connection, text: str, parameters: Any, take: Callable[[Any], T]) -> T:
    """Run a statement on the driver's own cursor, in the connection's transaction, and return what `take` reads of it.
    Raises SQLAlchemy's errors, without the parameters: values of a statement reach no message."""
    dialect = connection.dialect
    driver: Any = connection.connection
    try:
        with closing(driver.cursor()) as cursor:
            cursor.execute(text, parameters)
            return take(cursor)
    except dialect.loaded_dbapi.Error as error:
        if dialect.is_disconnect(error, driver.driver_connection, None):
            # As SQLAlchemy does: what is broken goes back to no pool.
            with suppress(Exception):
                connection.invalidate(error)
        raise DBAPIError.instance(text, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
