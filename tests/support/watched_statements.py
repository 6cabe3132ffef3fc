"""Statements of the ledgers, seen as they run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Dialect

from pentimento.stores.ledger import statements

Note = Callable[[Any, str, Any], None]


class WatchedCursor:
    """A driver's cursor that calls `note` with itself, the text and its parameters before each run."""

    def __init__(self, cursor: Any, note: Note) -> None:
        self._cursor = cursor
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, text: str, parameters: Any = ()) -> None:
        self._note(self._cursor, text, parameters)
        self._cursor.execute(text, parameters)

    def executemany(self, text: str, rows: Any) -> None:
        self._note(self._cursor, text, rows[0])
        self._cursor.executemany(text, rows)


@contextmanager
def watched_statements(note: Note) -> Iterator[None]:
    """Call `note` before each statement of any ledger of this process."""
    use_cursor = statements._use_cursor

    def watched(driver: Any, dialect: Dialect, text: str, use: Callable[[Any], Any]) -> Any:
        return use_cursor(driver, dialect, text, lambda cursor: use(WatchedCursor(cursor, note)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statements, "_use_cursor", watched)
        yield
