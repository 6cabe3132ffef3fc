"""Declare the columns of tables by name and type."""

from typing import Any

from sqlalchemy import Column


def keys(**types: type[Any]) -> list[Column[Any]]:
    """Return the columns of the primary key."""
    return [Column(name, kind, primary_key=True) for name, kind in types.items()]


def present(**types: type[Any]) -> list[Column[Any]]:
    """Return columns that have a value in every row."""
    return [Column(name, kind, nullable=False) for name, kind in types.items()]


def optional(**types: type[Any]) -> list[Column[Any]]:
    """Return columns that may be NULL."""
    return [Column(name, kind) for name, kind in types.items()]
