"""Read the entries that the index lacks, or holds under a key that they lost."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, Label, Select, and_, bindparam, func, literal_column, select, update

from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.cache_access import take_ticks
from pentimento.stores.ledger.cache_records import EntryVectors
from pentimento.stores.ledger.database import typed_errors
from pentimento.stores.ledger.live_entries import IS_LIVE
from pentimento.stores.ledger.prepared_read import PreparedRead
from pentimento.stores.ledger.prepared_write import PreparedWrite

_entries = tables.entries
_objects = tables.objects
_IS_NEW = and_(_entries.c.indexed == 0, IS_LIVE)
_IS_BETWEEN = (_IS_NEW, _entries.c.sequence.between(bindparam("first"), bindparam("last")))
_KEYS_BETWEEN = PreparedWrite(lambda dialect: select(_entries.c.entry_id, _keys_of_entry(dialect)).where(*_IS_BETWEEN))
_MARK_INDEXED = PreparedWrite(
    lambda _: update(_entries).where(_entries.c.entry_id == bindparam("id")).values(indexed=1)
)


class UnindexedEntries:
    """Prepare the statements once. Read from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._read = PreparedRead(engine, _unindexed(engine.dialect.name))
        self._newest = PreparedRead(engine, _newest_unindexed(engine.dialect.name))

    def newest(self, limit_count: int) -> list[EntryVectors]:
        """Return up to `limit_count` entries, newest first. Raises StoreUnavailable."""
        with typed_errors():
            return [_vectors(row) for row in self._newest.rows(limit_count=limit_count)]

    def read(self, limit_count: int, after: int) -> list[EntryVectors]:
        """Return up to `limit_count` entries numbered above `after`, oldest first. Raises StoreUnavailable."""
        with typed_errors():
            return [_vectors(row) for row in self._read.rows(after=after, limit_count=limit_count)]


def mark_indexed(connection: Connection, taken: Sequence[EntryVectors]) -> None:
    """Mark the entries that hold the same objects as when they were read."""
    if not taken:
        return
    # Locked: otherwise the mark of another gateway that evicts concurrently would be lost.
    take_ticks(connection, 0)
    numbers = [vectors.sequence for vectors in taken]
    held = dict(_KEYS_BETWEEN.rows(connection, {"first": min(numbers), "last": max(numbers)}))
    as_read = [each.entry_id for each in taken if _keys(held.get(each.entry_id)) == each.compatibility_keys]
    _MARK_INDEXED.each(connection, [{"id": entry_id} for entry_id in as_read])


def _keys(joined: str | None) -> tuple[str, ...]:
    """Return each of the compatibility keys once."""
    return tuple(sorted(set(joined.split(",")))) if joined else ()


def _vectors(row: Any) -> EntryVectors:
    return EntryVectors(
        row.sequence, row.entry_id, row.pool, _keys(row.keys), row.created_at, row.text_vector, row.image_vector
    )


def _unindexed(dialect: str) -> Select[Any]:
    return _new_entries(dialect).where(_entries.c.sequence > bindparam("after")).order_by(_entries.c.sequence)


def _newest_unindexed(dialect: str) -> Select[Any]:
    return _new_entries(dialect).order_by(_entries.c.sequence.desc())


def _new_entries(dialect: str) -> Select[Any]:
    vectors = (_entries.c.text_vector, _entries.c.image_vector)
    columns = (_entries.c.sequence, _entries.c.entry_id, _entries.c.pool, _entries.c.created_at, *vectors)
    return select(*columns, _keys_of_entry(dialect)).where(_IS_NEW).limit(bindparam("limit_count"))


def _keys_of_entry(dialect: str) -> Label[Any]:
    """Return the compatibility keys of an entry's objects, which are hex digests, joined by commas."""
    join = func.string_agg if dialect == "postgresql" else func.group_concat
    keys = select(join(_objects.c.compatibility_key, literal_column("','")))
    return keys.where(_objects.c.entry_id == _entries.c.entry_id).scalar_subquery().label("keys")
