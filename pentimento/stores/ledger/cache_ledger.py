"""Keep the gateway's ledger: grants, entries and objects. It is authoritative; the index and the object store follow
it.

Changes go through one writer with group commit and answer with futures; reads are synchronous, for threads.
"""

import secrets
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, delete, exists, func, select, update

from pentimento.domain.access import EvictionRule, FifoRule
from pentimento.domain.cache import CacheHolding
from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.generation import ObjectReference
from pentimento.domain.online_quality import ComparedHit, QualitySample, ThresholdPosition, WatchedThreshold
from pentimento.stores.ledger import cache_access as access
from pentimento.stores.ledger import cache_evictions as evictions
from pentimento.stores.ledger import cache_limits as limits
from pentimento.stores.ledger import cache_pins as pins
from pentimento.stores.ledger import cache_quality as quality
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger import cache_writes as writes
from pentimento.stores.ledger.cache_access import UseBatch
from pentimento.stores.ledger.cache_evictions import WhoGivesWay
from pentimento.stores.ledger.cache_integrity import contradictions
from pentimento.stores.ledger.cache_records import (
    CachedEntry,
    CacheTotals,
    EncoderBinding,
    EntryCommit,
    EntryVectors,
    GrantRecord,
    NumberedVector,
    ObjectPin,
)
from pentimento.stores.ledger.database import insert_unless_present, open_engine, typed_errors
from pentimento.stores.ledger.entry_reads import (
    IS_LIVE,
    REFERENCE,
    mark_indexed,
    newest_unindexed,
    read_live,
    read_unindexed,
    reference,
)
from pentimento.stores.ledger.migrations import migrate, require_newest
from pentimento.stores.ledger.statements import Statement
from pentimento.stores.ledger.writer import GroupCommitWriter, submitted

_entries = tables.entries
_objects = tables.objects
_state = tables.state
# Queries of every image are compiled once: to build a statement takes longer than to run it.
_OPEN_GRANTS = (
    select(func.count().label("open_grant_count")).select_from(tables.grants).where(tables.grants.c.entry_id.is_(None))
)
_IS_OF_TENANT = tables.grants.c.tenant == bindparam("of_tenant")
_OPEN_GRANTS_OF_TENANT = Statement(lambda _: _OPEN_GRANTS.where(_IS_OF_TENANT))
_TOTALS = Statement(
    lambda _: select(
        _state.c.entry_count,
        _state.c.object_count,
        _state.c.size_bytes,
        _OPEN_GRANTS.scalar_subquery().label("open_grant_count"),
    )
)
_HOLDING = Statement(lambda _: select(tables.holdings).where(tables.holdings.c.tenant == bindparam("of_tenant")))
_VECTORS_AFTER = Statement(
    lambda _: (
        select(_entries.c.sequence, _entries.c.pool, _entries.c.text_vector)
        .where(_entries.c.sequence > bindparam("after"), IS_LIVE)
        .order_by(_entries.c.sequence)
        .limit(bindparam("limit_count"))
    )
)


def open_cache_ledger(url: str, clock: Clock | None = None, *, as_it_is: bool = False) -> "CacheLedger":
    """Connect to the ledger at `url` (as in `open_engine`), migrate and return it. With `as_it_is` nothing is created
    or migrated. Raises StoreUnavailable, SchemaMismatch, InvalidArgument."""
    engine = open_engine(url)
    if as_it_is:
        require_newest(engine, "cache", tables.MIGRATIONS)
    else:
        migrate(engine, "cache", tables.MIGRATIONS)
        _make_state(engine)
    with typed_errors(), engine.connect().execution_options(reads_only=True) as connection:
        cache_id = connection.execute(select(_state.c.cache_id)).scalar_one()
    return CacheLedger(engine, clock or SystemClock(), str(cache_id))


def _make_state(engine: Engine) -> None:
    first = {"sequence": 0, "entry_count": 0, "object_count": 0, "size_bytes": 0, "tick": 0, "eviction_rule": ""}
    with typed_errors(), engine.begin() as connection:
        insert_unless_present(connection, _state, {"singleton": 1, "cache_id": secrets.token_hex(8), **first})


class CacheLedger:
    """Read and change the cache's tables. Futures and reads fail with StoreFull or StoreUnavailable."""

    def __init__(self, engine: Engine, clock: Clock, cache_id: str) -> None:
        self._engine = engine
        self._writer = GroupCommitWriter(engine, "cache-ledger")
        self._submit = self._writer.submit
        self._clock = clock
        self._rule: EvictionRule = FifoRule()
        self._removal_count = 0
        self.cache_id = cache_id

    # Changes.

    def follow(self, rule: EvictionRule) -> "Future[int]":
        """Let `rule` order evictions from now on, and return how many items it ranks again: none if it ranked them
        before. All gateways over one ledger follow the same rule."""
        self._rule = rule
        return self._writer.submit_in_parts(lambda connection: access.rank_anew(connection, rule))

    def note_uses(self, batch: UseBatch) -> "Future[int]":
        """Count the uses of a batch, once even if it is repeated, and return how many items they count for."""
        rule, now = self._rule, self._clock.wall()
        return self._submit(lambda connection: access.note_uses(connection, rule, batch, now))

    def note_quality(
        self, watched: WatchedThreshold, seen: ComparedHit, judge: quality.Judge, kept_count: int
    ) -> "Future[ThresholdPosition | None]":
        """Store the measured quality of a hit, once even if repeated, and return its threshold's position by `judge`,
        which receives the newest `kept_count` samples; None if the hit was counted before."""
        return self._submit(lambda connection: quality.note_quality(connection, watched, seen, judge, kept_count))

    def limit_tenant(self, tenant: str, most_bytes: int | None) -> "Future[None]":
        """Store the tenant's own bound in bytes across restarts; None removes it."""
        return self._submit(lambda connection: limits.limit_tenant(connection, tenant, most_bytes))

    def reserve(self, grant: GrantRecord) -> "Future[None]":
        """Store a grant. Its keys are known from here on, so an upload under them is never an orphan."""
        return self._submit(lambda connection: writes.reserve(connection, grant))

    def commit(self, commit: EntryCommit, encoder: EncoderBinding | None = None) -> "Future[str]":
        """Turn a grant into a live entry and return its id, the first one when repeated. Keys not captured are doomed.
        `encoder`: of the entry's vectors, if the cache may not be bound yet: the first entry binds it.

        Fails with NotFound when the grant is missing, FailedPrecondition when it belongs to another attempt or scope,
        InvalidArgument when it does not cover the captured objects, or the cache is bound to another encoder.
        """
        rule = self._rule
        return self._submit(lambda connection: writes.commit(connection, commit, rule, encoder))

    def release(self, grant_id: str) -> "Future[bool]":
        """Release an open grant and doom its keys. False when it is missing or committed."""
        return self._submit(lambda connection: writes.release(connection, [grant_id], self._clock.wall()) == 1)

    @submitted
    def expire_grants(self, connection: Connection) -> int:
        """Release the expired open grants, delete committed ones of that age and ended pins, and return the number
        released."""
        now = self._clock.wall()
        pins.let_go_of_ended(connection, now)
        return writes.expire(connection, now)

    def mark_indexed(self, taken: Sequence[EntryVectors]) -> "Future[None]":
        """Record that the index holds the entries as they were read; an entry that lost a key since stays unindexed."""
        return self._submit(lambda connection: mark_indexed(connection, taken))

    @submitted
    def mark_unindexed(self, connection: Connection, entry_ids: Collection[str]) -> None:
        """Record that the index does not hold the entries."""
        statement = update(_entries).where(_entries.c.entry_id.in_(entry_ids)).values(indexed=0)
        connection.execute(statement)

    def doom(self, entry_ids: Collection[str], grace_s: float) -> "Future[int]":
        """Take entries out of service; their objects stay for `grace_s` for readers that just looked them up."""
        now = self._clock.wall()
        return self._submit(
            lambda connection: writes.doom(connection, list(entry_ids), now, now + grace_s), self._note_removal
        )

    def forget_tenant(self, tenant: str) -> "Future[int]":
        """Drop the tenant's bound, pins and grants, doom some of its entries and return their number, at last 0."""
        now = self._clock.wall()
        return self._submit(lambda connection: writes.forget_tenant(connection, tenant, now), self._note_removal)

    def evict(self, who: WhoGivesWay, grace_s: float, new_after: int | None = None) -> "Future[int]":
        """Doom the lowest entry of the tenant that `who` names until it names none, and return the number doomed.
        Entries numbered above `new_after` come after all others."""
        now = self._clock.wall()
        return self._writer.submit_in_parts(
            lambda connection: evictions.evict(connection, who, now, now + grace_s, new_after), self._note_removal
        )

    def evict_items(self, who: WhoGivesWay, grace_s: float, new_after: int | None = None) -> "Future[int]":
        """Remove the lowest latent or image of the tenant that `who` names until it names none, and return their
        number. An entry without any is doomed. Items of entries above `new_after` come after all others."""
        now = self._clock.wall()
        return self._writer.submit_in_parts(
            lambda connection: evictions.evict_items(connection, who, now, now + grace_s, new_after), self._note_removal
        )

    def pin(self, wanted: ObjectPin, shared_pool: str) -> "Future[None]":
        """Keep an object for an image generated from it, regardless of its entry. Any tenant may pin the objects of the
        pool `shared_pool`. Fails with NotFound ANCESTOR_GONE."""
        now = self._clock.wall()
        return self._submit(lambda connection: pins.pin(connection, wanted, now, shared_pool))

    def unpin(self, tenant: str, request_id: str) -> "Future[int]":
        """End the pins of a request, and return their number."""
        return self._submit(lambda connection: pins.unpin(connection, tenant, request_id))

    def drop_pins(self, key: str) -> "Future[int]":
        """End the pins of an object with missing bytes, and return their number."""
        return self._submit(lambda connection: pins.drop_pins(connection, key))

    def claim_deletion(self, keys: Collection[str]) -> "Future[list[str]]":
        """Return the deletable keys of `keys`, and block new pins on their objects, which the caller deletes."""
        now = self._clock.wall()
        return self._submit(lambda connection: pins.claim_deletion(connection, keys, now))

    @submitted
    def forget_entries(self, connection: Connection, entry_ids: Collection[str]) -> None:
        """Delete doomed entries that the index no longer holds."""
        statement = delete(_entries).where(_entries.c.entry_id.in_(entry_ids), _entries.c.doomed_at.is_not(None))
        connection.execute(statement)

    @submitted
    def forget_objects(self, connection: Connection, keys: Collection[str]) -> None:
        """Delete the rows of doomed objects that the object store no longer has."""
        statement = delete(_objects).where(_objects.c.key.in_(keys), _objects.c.delete_after.is_not(None))
        connection.execute(statement)

    # Reads.

    @property
    def removal_count(self) -> int:
        """Return how often this process took entries or their objects out of service: live entries read before the last
        time may be stale."""
        return self._removal_count

    @property
    def writes_stuck_s(self) -> float:
        """Return for how many seconds no queued change has succeeded; 0 if changes succeed."""
        return self._writer.stuck_s

    def binding(self) -> EncoderBinding | None:
        """Return the cache's encoder; None before the first entry."""
        with self._reading() as connection:
            row = connection.execute(select(_state.c.encoder_digest, _state.c.dimension_count)).one()
        return EncoderBinding(row.encoder_digest, row.dimension_count) if row.encoder_digest else None

    def quality_positions(self) -> dict[WatchedThreshold, ThresholdPosition]:
        """Return the positions of all thresholds with repeated hits."""
        with self._reading() as connection:
            return quality.positions(connection)

    def quality_counts(self) -> dict[WatchedThreshold, int]:
        """Return the number of samples of every threshold since it moved last."""
        with self._reading() as connection:
            return quality.counts(connection)

    def quality_samples(self, watched: WatchedThreshold) -> list[QualitySample]:
        """Return the samples of a threshold, oldest first."""
        with self._reading() as connection:
            return quality.samples_of(connection, watched)

    def live_entry(self, entry_id: str) -> CachedEntry | None:
        """Return the entry with the objects it holds, or None if it is not live."""
        return self.live_entries([entry_id]).get(entry_id)

    def live_entries(self, entry_ids: Sequence[str]) -> dict[str, CachedEntry]:
        """Return the live entries of `entry_ids`, by id, with the objects they hold."""
        with typed_errors():
            return read_live(self._engine, entry_ids)

    def unindexed(self, limit_count: int, after: int = -1) -> list[EntryVectors]:
        """Return live entries numbered above `after` that the index lacks, or holds under a lost key, oldest first."""
        with typed_errors():
            return read_unindexed(self._engine, limit_count, after)

    def newest_unindexed(self, limit_count: int) -> list[EntryVectors]:
        """Return the unindexed live entries, newest first."""
        with typed_errors():
            return newest_unindexed(self._engine, limit_count)

    def vectors_after(self, sequence: int, limit_count: int) -> list[NumberedVector]:
        """Return live entries numbered above `sequence`, oldest first."""
        rows = self._rows(_VECTORS_AFTER, after=sequence, limit_count=limit_count)
        return [NumberedVector(row.sequence, row.pool, bytes(row.text_vector)) for row in rows]

    def live_sequences(self) -> list[int]:
        """Return the numbers of all live entries, oldest first."""
        statement = select(_entries.c.sequence).where(IS_LIVE).order_by(_entries.c.sequence)
        with self._reading() as connection:
            return list(connection.scalars(statement))

    def entry_ids(self, after: str = "", until: str | None = None, limit_count: int | None = None) -> list[str]:
        """Return the ids of stored entries, doomed ones too, in ascending order: above `after`, up to `until` (None: to
        the end), `limit_count` at most."""
        statement = select(_entries.c.entry_id).where(_entries.c.entry_id > after).order_by(_entries.c.entry_id)
        if until is not None:
            statement = statement.where(_entries.c.entry_id <= until)
        with self._reading() as connection:
            return list(connection.scalars(statement.limit(limit_count)))

    def indexed_ids(self, entry_ids: Collection[str]) -> set[str]:
        """Return the ids of live entries that the index should hold."""
        of_these = _entries.c.entry_id.in_(entry_ids)
        with self._reading() as connection:
            return set(
                connection.scalars(select(_entries.c.entry_id).where(of_these, _entries.c.indexed == 1, IS_LIVE))
            )

    def doomed_ids(self, limit_count: int) -> list[str]:
        """Return the ids of doomed entries that still have rows."""
        statement = select(_entries.c.entry_id).where(_entries.c.doomed_at.is_not(None)).limit(limit_count)
        with self._reading() as connection:
            return list(connection.scalars(statement))

    def deletable_keys(self, limit_count: int) -> list[str]:
        """Return keys of doomed objects past their grace period, with no entry in the index and no pin."""
        # No NOT IN: PostgreSQL compares each with all entries if those outgrow its memory for one hash table.
        still_indexed, now = exists().where(_entries.c.entry_id == _objects.c.entry_id), self._clock.wall()
        statement = select(_objects.c.key).where(_objects.c.delete_after <= now, pins.is_free(now), ~still_indexed)
        with self._reading() as connection:
            return list(connection.scalars(statement.limit(limit_count)))

    def known_keys(self, keys: Sequence[str]) -> set[str]:
        """Return the keys that are granted, held or doomed."""
        with self._reading() as connection:
            return set(connection.scalars(select(_objects.c.key).where(_objects.c.key.in_(keys))))

    def held_references(self) -> list[ObjectReference]:
        """Return the objects of all live entries."""
        statement = select(*REFERENCE).join(_entries, _entries.c.entry_id == _objects.c.entry_id).where(IS_LIVE)
        with self._reading() as connection:
            return [reference(row) for row in connection.execute(statement)]

    def kept_by_pins(self, key: str | None = None) -> list[ObjectReference]:
        """Return the objects that only a pin keeps from deletion. `key`: restrict to that object."""
        statement = pins.kept_by_pins(REFERENCE, self._clock.wall())
        with self._reading() as connection:
            of_key = statement if key is None else statement.where(_objects.c.key == key)
            return [reference(row) for row in connection.execute(of_key)]

    def pinned_totals(self) -> tuple[int, int]:
        """Return how many objects only a pin keeps from deletion, and their bytes."""
        columns = (func.count(), func.coalesce(func.sum(_objects.c.size_bytes), 0))
        with self._reading() as connection:
            count, size_bytes = connection.execute(pins.kept_by_pins(columns, self._clock.wall())).one()
        return count, int(size_bytes)

    def totals(self) -> CacheTotals:
        """Return the totals, which are kept up to date with every change."""
        (row,) = self._rows(_TOTALS)
        return CacheTotals(row.entry_count, row.object_count, row.size_bytes, row.open_grant_count)

    def newest_number(self) -> int:
        """Return the highest entry number so far; 0 before the first."""
        with self._reading() as connection:
            return int(connection.execute(select(_state.c.sequence)).scalar_one())

    def open_grant_count(self, tenant: str) -> int:
        """Return how many grants of the tenant are neither committed nor released."""
        (row,) = self._rows(_OPEN_GRANTS_OF_TENANT, of_tenant=tenant)
        return int(row.open_grant_count)

    def holding(self, tenant: str) -> CacheHolding:
        """Return the tenant's holding of live entries."""
        rows = self._rows(_HOLDING, of_tenant=tenant)
        return CacheHolding(rows[0].entry_count, rows[0].size_bytes) if rows else CacheHolding(0, 0)

    def holdings(self) -> dict[str, CacheHolding]:
        """Return each tenant's holding of live entries."""
        with self._reading() as connection:
            return evictions.holdings(connection)

    def tenant_limits(self) -> dict[str, int]:
        """Return the bound in bytes of each tenant with its own bound."""
        with self._reading() as connection:
            return limits.tenant_limits(connection)

    def check_integrity(self) -> list[str]:
        """Return a sentence for each contradiction between the rows."""
        with self._reading() as connection:
            return [*contradictions(connection), *pins.contradictions(connection, self._clock.wall())]

    def close(self) -> None:
        """Commit queued changes and disconnect from the database."""
        self._writer.close()

    def _note_removal(self) -> None:
        # Only the writer's thread calls this.
        self._removal_count += 1

    def _rows(self, statement: Statement, **values: Any) -> list[Any]:
        with typed_errors():
            return statement.read(self._engine, **values)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with typed_errors(), self._engine.connect().execution_options(reads_only=True) as connection:
            yield connection
