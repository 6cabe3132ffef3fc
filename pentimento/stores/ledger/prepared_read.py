"""Run a read of every lookup: its statement is compiled once, and run by the driver itself."""

from collections import namedtuple
from contextlib import closing
from typing import Any

from sqlalchemy import Engine, Select
from sqlalchemy.exc import DBAPIError

from pentimento.stores.ledger.compiled_statement import compile_statement


class PreparedRead:
    """Run a SELECT without SQLAlchemy's overhead, which costs five times as much as the run. It is one statement, so it
    sees one state of the database without its own transaction. Thread-safe."""

    def __init__(self, engine: Engine, statement: Select[Any]) -> None:
        self._engine = engine
        self._compiled = compile_statement(statement, engine.dialect)
        self._row: Any = namedtuple("Row", statement.selected_columns.keys())  # type: ignore[misc]

    def rows(self, **parameters: Any) -> list[Any]:
        """Return the rows, with the columns as attributes. Raises SQLAlchemy's errors."""
        dialect = self._engine.dialect
        text, given = self._compiled.text, self._compiled.parameters(parameters)
        try:
            with closing(self._engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
                cursor.execute(text, given)
                return [self._row(*row) for row in cursor.fetchall()]
        except dialect.loaded_dbapi.Error as error:
            # Without the parameters: values of a statement reach no message.
            raise DBAPIError.instance(text, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
