"""Read live entries, take them out of service, and record whether the index holds them."""

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Label,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal_column,
    select,
    update,
)

from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.part import CachePart, lock
from pentimento.stores.ledger.cache.pins import IS_FREE
from pentimento.stores.ledger.cache.records import CachedEntry, CacheTotals, EntryVectors, HeldLatent, NumberedVector
from pentimento.stores.ledger.statements import Statement, among
from pentimento.stores.ledger.writer import submitted

_entries = tables.entries
_objects = tables.objects
_state = tables.state
# No table has more.
_MOST_ROWS = 2**62
IS_LIVE = _entries.c.doomed_at.is_(None)
# The columns that `reference` reads.
REFERENCE: tuple[Column[Any], ...] = (_objects.c.key, _objects.c.digest, _objects.c.size_bytes)
_IS_ONE_OF = among(_entries.c.entry_id, "entry_ids")
_LIVE_ENTRIES = Statement(
    select(
        *(_entries.c.entry_id, _entries.c.pool, _entries.c.created_at, _entries.c.ancestor_depth),
        *(_entries.c.tenant, _entries.c.request_id, _entries.c.repeat_key),
        _entries.c.image_vector.is_not(None).label("is_seen"),
        *(*REFERENCE, _objects.c.compatibility_key, _objects.c.resume_step, _objects.c.sigma),
    )
    .join(_objects, _objects.c.entry_id == _entries.c.entry_id)
    .where(_IS_ONE_OF, IS_LIVE)
    .order_by(_objects.c.resume_step)
)
_IS_NEW = and_(_entries.c.indexed == 0, IS_LIVE)
_IS_AFTER = _entries.c.sequence > bindparam("after")
_UNINDEXED = Statement(lambda dialect: _new_entries(dialect).where(_IS_AFTER).order_by(_entries.c.sequence))
_NEWEST = Statement(lambda dialect: _new_entries(dialect).order_by(_entries.c.sequence.desc()))
_IS_BETWEEN = _entries.c.sequence.between(bindparam("least"), bindparam("most"))
_KEYS_BETWEEN = Statement(
    lambda dialect: select(_entries.c.entry_id, _keys_of_entry(dialect)).where(_IS_NEW, _IS_BETWEEN)
)
_SET_INDEXED = Statement(update(_entries).where(_IS_ONE_OF))
_VECTORS_AFTER = Statement(
    select(_entries.c.sequence, _entries.c.pool, _entries.c.text_vector)
    .where(_IS_AFTER, IS_LIVE)
    .order_by(_entries.c.sequence)
    .limit(bindparam("limit_count"))
)
_LIVE_SEQUENCES = Statement(select(_entries.c.sequence).where(IS_LIVE).order_by(_entries.c.sequence))
_IDS = (
    select(_entries.c.entry_id)
    .where(_entries.c.entry_id > bindparam("after"))
    .order_by(_entries.c.entry_id)
    .limit(bindparam("limit_count"))
)
_IDS_AFTER, _IDS_BETWEEN = Statement(_IDS), Statement(_IDS.where(_entries.c.entry_id <= bindparam("until")))
_INDEXED_IDS = Statement(select(_entries.c.entry_id).where(_IS_ONE_OF, _entries.c.indexed == 1, IS_LIVE))
_DOOMED_IDS = Statement(select(_entries.c.entry_id).where(~IS_LIVE).limit(bindparam("limit_count")))
# No NOT IN: PostgreSQL compares each with all entries if those outgrow its memory for one hash table.
_DELETABLE_KEYS = Statement(
    select(_objects.c.key)
    .where(_objects.c.delete_after <= bindparam("now"), IS_FREE)
    .where(~exists().where(_entries.c.entry_id == _objects.c.entry_id))
    .limit(bindparam("limit_count"))
)
_HELD_REFERENCES = Statement(
    select(*REFERENCE).join(_entries, _entries.c.entry_id == _objects.c.entry_id).where(IS_LIVE)
)
_OPEN_GRANTS = select(func.count()).select_from(tables.grants).where(tables.grants.c.entry_id.is_(None))
_TOTALS = Statement(
    select(_state.c.entry_count, _state.c.object_count, _state.c.size_bytes, _OPEN_GRANTS.scalar_subquery())
)
_NEWEST_NUMBER = Statement(select(_state.c.sequence))
_DOOM = Statement(
    update(_entries).where(_IS_ONE_OF, IS_LIVE).returning(*_entries.c["entry_id", "object_count", "size_bytes"])
)
_DOOM_OBJECTS = Statement(update(_objects).where(among(_objects.c.entry_id, "entry_ids")))
_ADD_TO_TOTALS = Statement(
    update(_state).values(
        entry_count=_state.c.entry_count + bindparam("entries"),
        object_count=_state.c.object_count + bindparam("objects"),
        size_bytes=_state.c.size_bytes + bindparam("added_bytes"),
    )
)
_FORGET_ENTRIES = Statement(delete(_entries).where(_IS_ONE_OF, ~IS_LIVE))
_FORGET_OBJECTS = Statement(delete(_objects).where(among(_objects.c.key, "keys"), _objects.c.delete_after.is_not(None)))


class CacheEntries(CachePart):
    """Read the live entries, and remove them step by step: index first, objects second, rows last."""

    @submitted
    def mark_indexed(self, connection: Connection, taken: Sequence[EntryVectors]) -> None:
        """Record that the index holds the entries as they were read; an entry that lost a key since stays unindexed."""
        if not taken:
            return
        # Locked: otherwise the mark of another gateway that evicts concurrently would be lost.
        lock(connection)
        numbers = [vectors.sequence for vectors in taken]
        held = dict(_KEYS_BETWEEN.rows(connection, least=min(numbers), most=max(numbers)))
        as_read = [each.entry_id for each in taken if _keys(held.get(each.entry_id)) == each.compatibility_keys]
        set_indexed(connection, as_read, 1)

    @submitted
    def mark_unindexed(self, connection: Connection, entry_ids: Collection[str]) -> None:
        """Record that the index does not hold the entries."""
        set_indexed(connection, entry_ids, 0)

    def doom(self, entry_ids: Collection[str], grace_s: float) -> "Future[int]":
        """Take entries out of service; their objects stay for `grace_s` for readers that just looked them up."""
        now = self._clock.wall()
        return self._submit(
            lambda connection: doom_entries(connection, entry_ids, now, now + grace_s), self._note_removal
        )

    @submitted
    def forget_entries(self, connection: Connection, entry_ids: Collection[str]) -> None:
        """Delete doomed entries that the index no longer holds."""
        _FORGET_ENTRIES.change(connection, entry_ids=entry_ids)

    @submitted
    def forget_objects(self, connection: Connection, keys: Collection[str]) -> None:
        """Delete the rows of doomed objects that the object store no longer has."""
        _FORGET_OBJECTS.change(connection, keys=keys)

    def live_entry(self, entry_id: str) -> CachedEntry | None:
        """Return the entry with the objects it holds, or None if it is not live."""
        return self.live_entries([entry_id]).get(entry_id)

    def live_entries(self, entry_ids: Sequence[str]) -> dict[str, CachedEntry]:
        """Return the live entries of `entry_ids`, by id, with the objects they hold."""
        rows: dict[str, list[Any]] = {}
        for row in _LIVE_ENTRIES.rows(self._engine, entry_ids=entry_ids):
            rows.setdefault(row.entry_id, []).append(row)
        return {entry_id: _entry(of_entry) for entry_id, of_entry in rows.items()}

    def unindexed(self, limit_count: int, after: int = -1) -> list[EntryVectors]:
        """Return live entries numbered above `after` that the index lacks, or holds under a lost key, oldest first."""
        return [_vectors(row) for row in _UNINDEXED.rows(self._engine, limit_count=limit_count, after=after)]

    def newest_unindexed(self, limit_count: int) -> list[EntryVectors]:
        """Return the unindexed live entries, newest first."""
        return [_vectors(row) for row in _NEWEST.rows(self._engine, limit_count=limit_count)]

    def vectors_after(self, sequence: int, limit_count: int) -> list[NumberedVector]:
        """Return live entries numbered above `sequence`, oldest first."""
        rows = _VECTORS_AFTER.rows(self._engine, after=sequence, limit_count=limit_count)
        return [NumberedVector(row.sequence, row.pool, bytes(row.text_vector)) for row in rows]

    def live_sequences(self) -> list[int]:
        """Return the numbers of all live entries, oldest first."""
        return _LIVE_SEQUENCES.scalars(self._engine)

    def entry_ids(self, after: str = "", until: str | None = None, limit_count: int | None = None) -> list[str]:
        """Return the ids of stored entries, doomed ones too, in ascending order: above `after`, up to `until` (None: to
        the end), `limit_count` at most."""
        wanted: dict[str, Any] = {"after": after, "limit_count": _MOST_ROWS if limit_count is None else limit_count}
        if until is None:
            return _IDS_AFTER.scalars(self._engine, **wanted)
        return _IDS_BETWEEN.scalars(self._engine, until=until, **wanted)

    def indexed_ids(self, entry_ids: Collection[str]) -> set[str]:
        """Return the ids of live entries that the index should hold."""
        return set(_INDEXED_IDS.scalars(self._engine, entry_ids=entry_ids))

    def doomed_ids(self, limit_count: int) -> list[str]:
        """Return the ids of doomed entries that still have rows."""
        return _DOOMED_IDS.scalars(self._engine, limit_count=limit_count)

    def deletable_keys(self, limit_count: int) -> list[str]:
        """Return keys of doomed objects past their grace period, with no entry in the index and no pin."""
        return _DELETABLE_KEYS.scalars(self._engine, now=self._clock.wall(), limit_count=limit_count)

    def held_references(self) -> list[ObjectReference]:
        """Return the objects of all live entries."""
        return [ObjectReference(*row) for row in _HELD_REFERENCES.rows(self._engine)]

    def totals(self) -> CacheTotals:
        """Return the totals, which are kept up to date with every change."""
        (row,) = _TOTALS.rows(self._engine)
        return CacheTotals(*row)

    def newest_number(self) -> int:
        """Return the highest entry number so far; 0 before the first."""
        return int(_NEWEST_NUMBER.scalar(self._engine))


def doom_entries(connection: Connection, entry_ids: Collection[str], now: float, delete_after: float) -> int:
    """Take entries out of service and return their number; their objects stay until `delete_after`."""
    # As in a commit: first the lock of the one row, then the tenant's holding. The other order would deadlock.
    lock(connection)
    rows = _DOOM.rows(connection, entry_ids=entry_ids, doomed_at=now)
    if rows:
        _DOOM_OBJECTS.change(connection, entry_ids=[row.entry_id for row in rows], delete_after=delete_after)
        objects, size_bytes = sum(row.object_count for row in rows), sum(row.size_bytes for row in rows)
        add_to_totals(connection, -len(rows), -objects, -size_bytes)
    return len(rows)


def set_indexed(connection: Connection, entry_ids: Collection[str], indexed: int) -> None:
    """Record whether the index holds the entries: 1 or 0."""
    _SET_INDEXED.change(connection, entry_ids=entry_ids, indexed=indexed)


def add_to_totals(connection: Connection, entries: int, objects: int, size_bytes: int) -> None:
    """Add to the totals of live entries, held objects and their bytes."""
    _ADD_TO_TOTALS.change(connection, entries=entries, objects=objects, added_bytes=size_bytes)


def _entry(rows: Sequence[Any]) -> CachedEntry:
    """Return the entry of `rows`, one row per object; an entry holds at least one."""
    first = rows[0]
    latents = tuple(
        HeldLatent(row.resume_step, row.sigma, _reference(row), row.compatibility_key)
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
        image=_reference(image) if image is not None else None,
        image_key=image.compatibility_key if image is not None else "",
        tenant=first.tenant,
        request_id=first.request_id,
        repeat_key=first.repeat_key,
        is_seen=bool(first.is_seen),
    )


def _reference(row: Any) -> ObjectReference:
    return ObjectReference(row.key, row.digest, row.size_bytes)


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
