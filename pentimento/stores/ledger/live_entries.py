"""Read the live entries of a lookup, with the objects that they hold."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Engine, Row, bindparam, select

from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.cache_records import CachedEntry, HeldLatent
from pentimento.stores.ledger.database import typed_errors
from pentimento.stores.ledger.prepared_read import PreparedRead

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


class LiveEntries:
    """Prepare one statement for each number of entries. Read from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reads: dict[int, PreparedRead] = {}

    def read(self, entry_ids: Sequence[str]) -> dict[str, CachedEntry]:
        """Return the live entries of `entry_ids`, by id. Raises StoreUnavailable."""
        rows: dict[str, list[Any]] = {}
        for start in range(0, len(entry_ids), _MOST_READ_COUNT):
            part = entry_ids[start : start + _MOST_READ_COUNT]
            with typed_errors():
                read = self._prepared(len(part))
                for row in read.rows(**{f"id_{number}": entry_id for number, entry_id in enumerate(part)}):
                    rows.setdefault(row.entry_id, []).append(row)
        return {entry_id: _entry(of_entry) for entry_id, of_entry in rows.items()}

    def _prepared(self, count: int) -> PreparedRead:
        """Return the read of `count` entries; threads that race to prepare one prepare the same."""
        if (read := self._reads.get(count)) is None:
            places: list[Any] = [bindparam(f"id_{number}") for number in range(count)]
            read = PreparedRead(self._engine, _LIVE_ENTRIES.where(_entries.c.entry_id.in_(places)))
            self._reads[count] = read
        return read


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
