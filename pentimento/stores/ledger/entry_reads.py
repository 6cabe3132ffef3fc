"""Read entries of the cache: live ones of a lookup, and ones that the index lacks or holds under a lost key."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Label,
    Row,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    update,
)

from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.cache_access import take_ticks
from pentimento.stores.ledger.cache_records import CachedEntry, EntryVectors, HeldLatent
from pentimento.stores.ledger.statements import Statement

_entries = tables.entries
_objects = tables.objects
IS_LIVE = _entries.c.doomed_at.is_(None)
# The columns that `reference` reads.
REFERENCE: tuple[Column[Any], ...] = (_objects.c.key, _objects.c.digest, _objects.c.size_bytes)
# Completed with the number of entries that a lookup found.
_LIVE_ENTRIES = (
    select(
        _entries.c.entry_id,
        _entries.c.pool,
        _entries.c.created_at,
        _entries.c.ancestor_depth,
        _entries.c.tenant,
        _entries.c.request_id,
        _entries.c.repeat_key,
        *REFERENCE,
        _objects.c.compatibility_key,
        _objects.c.resume_step,
        _objects.c.sigma,
    )
    .join(_objects, _objects.c.entry_id == _entries.c.entry_id)
    .where(IS_LIVE)
    .order_by(_objects.c.resume_step)
)
_MOST_READ_COUNT = 100


def read_live(engine: Engine, entry_ids: Sequence[str]) -> dict[str, CachedEntry]:
    """Return the live entries of `entry_ids`, by id. Raises SQLAlchemy's errors."""
    rows: dict[str, list[Any]] = {}
    for start in range(0, len(entry_ids), _MOST_READ_COUNT):
        part = entry_ids[start : start + _MOST_READ_COUNT]
        ids = {f"id_{number}": entry_id for number, entry_id in enumerate(part)}
        for row in _reading(len(part)).read(engine, **ids):
            rows.setdefault(row.entry_id, []).append(row)
    return {entry_id: _entry(of_entry) for entry_id, of_entry in rows.items()}


@cache
def _reading(count: int) -> Statement:
    places: list[Any] = [bindparam(f"id_{number}") for number in range(count)]
    return Statement(lambda _: _LIVE_ENTRIES.where(_entries.c.entry_id.in_(places)))


def reference(row: Row[Any]) -> ObjectReference:
    """Return the reference in a row of an object."""
    return ObjectReference(row.key, row.digest, row.size_bytes)


def _entry(rows: Sequence[Any]) -> CachedEntry:
    """Return the entry of `rows`, one row per object; an entry holds at least one."""
    first = rows[0]
    latents = tuple(
        HeldLatent(row.resume_step, row.sigma, reference(row), row.compatibility_key)
        for row in rows
        if row.resume_step is not None
    )
    image = next((row for row in rows if row.resume_step is None), None)
    return CachedEntry(
        entry_id=first.entry_id,
        pool=first.pool,
        created_at=first.created_at,
        ancestor_depth=first.ancestor_depth,
        latents=latents,
        image=reference(image) if image is not None else None,
        image_key=image.compatibility_key if image is not None else "",
        tenant=first.tenant,
        request_id=first.request_id,
        repeat_key=first.repeat_key,
    )


_IS_NEW = and_(_entries.c.indexed == 0, IS_LIVE)
_IS_BETWEEN = (_IS_NEW, _entries.c.sequence.between(bindparam("first"), bindparam("last")))
_KEYS_BETWEEN = Statement(lambda dialect: select(_entries.c.entry_id, _keys_of_entry(dialect)).where(*_IS_BETWEEN))
_MARK_INDEXED = Statement(lambda _: update(_entries).where(_entries.c.entry_id == bindparam("id")).values(indexed=1))
_IS_AFTER = _entries.c.sequence > bindparam("after")
_UNINDEXED = Statement(lambda dialect: _new_entries(dialect).where(_IS_AFTER).order_by(_entries.c.sequence))
_NEWEST = Statement(lambda dialect: _new_entries(dialect).order_by(_entries.c.sequence.desc()))


def read_unindexed(engine: Engine, limit_count: int, after: int) -> list[EntryVectors]:
    """Return up to `limit_count` entries numbered above `after`, oldest first. Raises SQLAlchemy's errors."""
    return [_vectors(row) for row in _UNINDEXED.read(engine, limit_count=limit_count, after=after)]


def newest_unindexed(engine: Engine, limit_count: int) -> list[EntryVectors]:
    """Return up to `limit_count` entries, newest first. Raises SQLAlchemy's errors."""
    return [_vectors(row) for row in _NEWEST.read(engine, limit_count=limit_count)]


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


def _new_entries(dialect: str) -> Select[Any]:
    vectors = (_entries.c.text_vector, _entries.c.image_vector)
    columns = (_entries.c.sequence, _entries.c.entry_id, _entries.c.pool, _entries.c.created_at, *vectors)
    return select(*columns, _keys_of_entry(dialect)).where(_IS_NEW).limit(bindparam("limit_count"))


def _keys_of_entry(dialect: str) -> Label[Any]:
    """Return the compatibility keys of an entry's objects, which are hex digests, joined by commas."""
    join = func.string_agg if dialect == "postgresql" else func.group_concat
    keys = select(join(_objects.c.compatibility_key, literal_column("','")))
    return keys.where(_objects.c.entry_id == _entries.c.entry_id).scalar_subquery().label("keys")
