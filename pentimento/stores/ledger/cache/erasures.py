"""Erase a tenant's share of the cache in parts, and count the deleted data in the same transactions."""

from concurrent.futures import Future
from dataclasses import replace

from sqlalchemy import Connection, bindparam, delete, exists, func, select, update

from pentimento.domain.cache import ErasedCache
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.entries import IS_LIVE, doom_entries
from pentimento.stores.ledger.cache.evictions import drop_limit
from pentimento.stores.ledger.cache.grants import release_all
from pentimento.stores.ledger.cache.part import CachePart, lock
from pentimento.stores.ledger.cache.pins import drop_pins_of
from pentimento.stores.ledger.statements import Statement, among, insert_unless_present

_entries = tables.entries
_objects = tables.objects
_erasures = tables.erasures
_pins = tables.pins
_ERASED_AT_ONCE = 256
_COUNTS = ("entry_count", "latent_count", "latent_bytes", "image_count", "image_bytes", "vector_count", "vector_bytes")
_IS_OF_TENANT, _IS_ITS_OBJECT = (table.c.tenant == bindparam("of_tenant") for table in (_entries, _objects))
_SOME = Statement(
    select(
        _entries.c.entry_id,
        func.length(_entries.c.text_vector).label("text_bytes"),
        func.length(_entries.c.image_vector).label("image_bytes"),
    )
    .where(_IS_OF_TENANT, IS_LIVE)
    .limit(_ERASED_AT_ONCE)
)
_HELD = Statement(select(_objects.c.resume_step, _objects.c.size_bytes).where(among(_objects.c.entry_id, "entry_ids")))
# Evicted items have a time of grace for readers, which an erasure ends.
_HASTEN = Statement(
    update(_objects)
    .where(_IS_ITS_OBJECT, _objects.c.delete_after > bindparam("now"))
    .returning(_objects.c.resume_step, _objects.c.size_bytes)
)
_DROP_PINS_ON = Statement(delete(_pins).where(exists().where(_objects.c.key == _pins.c.key, _IS_ITS_OBJECT)))
_BEGIN = insert_unless_present(_erasures)
_ADD = Statement(
    update(_erasures)
    .where(_erasures.c.tenant == bindparam("of_tenant"))
    .values({name: _erasures.c[name] + bindparam(f"more_{name}") for name in _COUNTS})
)
_ERASED = Statement(
    select(*(_erasures.c[name] for name in _COUNTS)).where(_erasures.c.tenant == bindparam("of_tenant"))
)
_LEFT = tuple(
    Statement(select(func.count()).select_from(table).where(table.c.tenant == bindparam("of_tenant")))
    for table in (_entries, _objects)
)


class CacheErasures(CachePart):
    """Erase tenants: identities that have no further requests."""

    def forget_tenant(self, tenant: str) -> "Future[int]":
        """Drop the tenant's bound, grants, pins and the pins on its objects, doom some of its entries and return their
        number, at last 0."""
        now = self._clock.wall()
        return self._submit(lambda connection: _erase_some(connection, tenant, now), self._note_removal)

    def erased(self, tenant: str) -> ErasedCache:
        """Return what `forget_tenant` has counted, and how many entries and objects still have rows."""
        row = _ERASED.first(self._engine, of_tenant=tenant)
        left = sum(int(statement.scalar(self._engine, of_tenant=tenant)) for statement in _LEFT)
        return replace(ErasedCache(*(row or ())), left_count=left)


def _erase_some(connection: Connection, tenant: str, now: float) -> int:
    lock(connection)
    drop_limit(connection, tenant)
    drop_pins_of(connection, tenant)
    # A replay by another tenant ends as ANCESTOR_GONE then.
    _DROP_PINS_ON.change(connection, of_tenant=tenant)
    release_all(connection, tenant, now)
    some = _SOME.rows(connection, of_tenant=tenant)
    entry_ids = [row.entry_id for row in some]
    objects = _HELD.rows(connection, entry_ids=entry_ids)
    doom_entries(connection, entry_ids, now, now)
    objects += _HASTEN.rows(connection, of_tenant=tenant, now=now, delete_after=now)
    latents = [row.size_bytes for row in objects if row.resume_step is not None]
    images = [row.size_bytes for row in objects if row.resume_step is None]
    vectors = [size for row in some for size in (row.text_bytes, row.image_bytes) if size is not None]
    sums = (len(some), *(number for sizes in (latents, images, vectors) for number in (len(sizes), sum(sizes))))
    more = dict(zip(_COUNTS, sums, strict=True))
    _BEGIN.first(connection, tenant=tenant, **dict.fromkeys(_COUNTS, 0))
    _ADD.change(connection, of_tenant=tenant, **{f"more_{name}": count for name, count in more.items()})
    return len(some)
