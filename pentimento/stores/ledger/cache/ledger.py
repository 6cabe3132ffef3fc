"""Keep the gateway's ledger: grants, entries and objects. It is authoritative; the index and the object store follow
it.

Changes go through one writer with group commit and answer with futures; reads are synchronous, for threads.
"""

import secrets
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

from sqlalchemy import Connection, Engine, bindparam, delete, exists, func, select, update

from pentimento.domain.cache import ErasedCache
from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.embedding import Space
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.entries import IS_LIVE, CacheEntries, doom_entries
from pentimento.stores.ledger.cache.evictions import CacheEvictions, drop_limit
from pentimento.stores.ledger.cache.grants import CacheGrants, release_all
from pentimento.stores.ledger.cache.part import CachePart, lock
from pentimento.stores.ledger.cache.pins import IS_KEPT, drop_pins_of
from pentimento.stores.ledger.cache.quality import CacheQuality
from pentimento.stores.ledger.cache.records import EncoderBinding
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.errors import typed_errors
from pentimento.stores.ledger.migrations import migrate, require_newest
from pentimento.stores.ledger.statements import Statement, among, insert_unless_present

_entries = tables.entries
_objects = tables.objects
_pins = tables.pins
_erasures = tables.erasures
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


_STATE = Statement(select(*tables.state.c["entry_count", "object_count", "size_bytes"]))
_SUMS = (func.count(), func.coalesce(func.sum(_entries.c.object_count), 0), func.sum(_entries.c.size_bytes))
_SUMMED = Statement(select(_entries.c.tenant, *_SUMS).where(IS_LIVE).group_by(_entries.c.tenant))
_HOLDINGS = Statement(select(*tables.holdings.c["tenant", "entry_count", "size_bytes"]))
_HOMELESS = Statement(
    select(_objects.c.key).where(
        _objects.c.delete_after.is_(None),
        ~exists().where(tables.grants.c.grant_id == _objects.c.grant_id),
        ~exists().where(_entries.c.entry_id == _objects.c.entry_id, IS_LIVE),
    )
)
_LOST_PINS = Statement(
    select(_pins.c.request_id, _pins.c.key).where(
        _pins.c.expires_at > bindparam("now"), ~exists().where(_objects.c.key == _pins.c.key, IS_KEPT)
    )
)


class CacheChecks(CachePart):
    """Compare the cache's rows with each other."""

    def check_integrity(self) -> list[str]:
        """Return a sentence for each total and holding that differs from the rows, each object without an owner, and
        each pin of an object that is missing or is being deleted. No write may be unfinished."""
        return list(self._contradictions())

    def _contradictions(self) -> Iterator[str]:
        # PostgreSQL sums to Decimal.
        summed = {tenant: tuple(map(int, sums)) for tenant, *sums in _SUMMED.rows(self._engine)}
        kept = tuple(_STATE.rows(self._engine)[0])
        rows = tuple(sum(sums[at] for sums in summed.values()) for at in range(3))
        if kept != rows:
            yield f"totals say {kept} entries, objects and bytes, rows {rows}"
        there = {tenant: (count, size_bytes) for tenant, (count, _, size_bytes) in summed.items()}
        held = {tenant: tuple(holding) for tenant, *holding in _HOLDINGS.rows(self._engine)}
        for tenant in sorted(there.keys() | held.keys()):
            if held.get(tenant) != there.get(tenant):
                yield f"tenant {tenant} is said to hold {held.get(tenant)} entries and bytes, rows {there.get(tenant)}"
        for key in _HOMELESS.scalars(self._engine):
            yield f"object {key} belongs to no grant and no live entry, and is not doomed"
        for request_id, key in _LOST_PINS.rows(self._engine, now=self._clock.wall()):
            yield f"the pin of request {request_id} is on object {key}, which is not kept"


_FORGOTTEN_AT_ONCE = 256
_MAKE_STATE = insert_unless_present(tables.state)
_CACHE_ID = Statement(select(tables.state.c.cache_id))
_SOME_LIVE = Statement(select(_entries.c.entry_id).where(IS_LIVE).limit(_FORGOTTEN_AT_ONCE))
_FORGET_LOOKS = Statement(update(_entries).where(IS_LIVE, _entries.c.image_vector.is_not(None)))
_REPLACE_ENCODER = Statement(update(tables.encoders).where(tables.encoders.c.space == bindparam("of_space")))


def open_cache_ledger(url: str, clock: Clock | None = None, *, as_it_is: bool = False) -> "CacheLedger":
    """Connect to the ledger at `url` (as in `open_engine`), migrate and return it. With `as_it_is` nothing is created
    or migrated. Raises StoreUnavailable, SchemaMismatch, InvalidArgument."""
    engine = open_engine(url)
    if as_it_is:
        require_newest(engine, tables.SCHEMA)
    else:
        migrate(engine, tables.SCHEMA)
        first = {"sequence": 0, "entry_count": 0, "object_count": 0, "size_bytes": 0, "tick": 0, "eviction_rule": ""}
        with typed_errors(), engine.begin() as connection:
            _MAKE_STATE.first(connection, singleton=1, cache_id=secrets.token_hex(8), **first)
    return CacheLedger(engine, clock or SystemClock(), str(_CACHE_ID.scalar(engine)))


class CacheLedger(CacheGrants, CacheEntries, CacheEvictions, CacheErasures, CacheQuality, CacheChecks):
    """Read and change the cache's tables. Futures and reads fail with StoreFull or StoreUnavailable."""

    def __init__(self, engine: Engine, clock: Clock, cache_id: str) -> None:
        super().__init__(engine, clock)
        self.cache_id = cache_id

    @property
    def writes_stuck_s(self) -> float:
        """Return for how many seconds no queued change has succeeded; 0 if changes succeed."""
        return self._writer.stuck_s

    def replace_encoder(self, encoder: EncoderBinding, grace_s: float) -> "Future[None]":
        """Bind a space to another encoder and drop the vectors before, which are not comparable with its own: of images
        their vectors alone, of texts the entries. Objects stay for `grace_s`."""
        now = self._clock.wall()

        def replace(connection: Connection) -> None:
            lock(connection)
            values = {"encoder_digest": encoder.encoder_digest, "dimension_count": encoder.dimension_count}
            _REPLACE_ENCODER.change(connection, of_space=encoder.space.value, **values)
            if encoder.space is Space.IMAGE:
                _FORGET_LOOKS.change(connection, image_vector=None, indexed=0)
                return
            while some := _SOME_LIVE.scalars(connection):
                doom_entries(connection, some, now, now + grace_s)

        return self._submit(replace, self._note_removal)

    def close(self) -> None:
        """Commit queued changes and disconnect from the database."""
        self._writer.close()
