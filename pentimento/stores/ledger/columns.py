"""Declare the columns and indexes of tables by name."""

from itertools import count
from typing import Any

from sqlalchemy import Column, Index, Table, text

_numbers = count()


def keys(**types: type[Any]) -> list[Column[Any]]:
    """Return the columns of the primary key."""
    return [Column(name, kind, primary_key=True, autoincrement=False) for name, kind in types.items()]


def present(**types: type[Any]) -> list[Column[Any]]:
    """Return columns that have a value in every row."""
    return [Column(name, kind, nullable=False) for name, kind in types.items()]


def defaulting(default: str, **types: type[Any]) -> list[Column[Any]]:
    """Return columns that have the SQL value `default` in a row that was inserted without them."""
    return [Column(name, kind, nullable=False, server_default=text(default)) for name, kind in types.items()]


def optional(**types: type[Any]) -> list[Column[Any]]:
    """Return columns that may be NULL."""
    return [Column(name, kind) for name, kind in types.items()]


def index(name: str, *columns: str, where: str = "", unique: bool = False) -> Index:
    """Return an index of the rows that meet the SQL condition `where`; of all without one."""
    condition = text(where) if where else None
    number = {"number": next(_numbers)}
    return Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition, info=number)


def indexes_of(table: Table) -> list[Index]:
    """Return the indexes of a table as they were declared: of equal ones SQLite uses the last."""
    return sorted(table.indexes, key=lambda each: int(each.info["number"]))
