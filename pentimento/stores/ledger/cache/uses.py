"""Store access records as columns of the cache's rows, with the ranks that an eviction rule computes from them.

Ticks come from one counter of the whole cache. Taking them locks its row until the commit, so gateways over one ledger
change records one after the other, and no use is lost between a read and its write.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, delete, select, update

from pentimento.domain.access import AccessRecord, EvictionRule, FifoRule, Rank
from pentimento.domain.clock import Clock
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.part import CachePart, lock, take_ticks
from pentimento.stores.ledger.statements import Statement, among, insert_unless_present
from pentimento.stores.ledger.writer import JobPart, submitted

_entries = tables.entries
_objects = tables.objects
_state = tables.state
_batches = tables.use_batches

RECORD = ("saved_steps", "added_tick", "used_tick", "use_count", "faded_uses", "rank_score", "rank_tie")
IS_HELD = _objects.c.entry_id.is_not(None) & _objects.c.delete_after.is_(None)
_RANK_OBJECT = Statement(update(_objects).where(_objects.c.key == bindparam("ranked_key")))
_RANK_ENTRY = Statement(update(_entries).where(_entries.c.entry_id == bindparam("ranked_entry")))
_HELD = select(_objects.c.key, _objects.c.entry_id, _objects.c.size_bytes, *(_objects.c[name] for name in RECORD))
_HOMES = select(_objects.c.entry_id).where(among(_objects.c.key, "keys"), IS_HELD)
_BESIDE = Statement(_HELD.where(_objects.c.entry_id.in_(_HOMES), IS_HELD).order_by(_objects.c.key))
_HELD_BY = Statement(_HELD.where(among(_objects.c.entry_id, "entry_ids"), IS_HELD))
_FORGET_BATCHES = Statement(delete(_batches).where(_batches.c.noted_at < bindparam("before")))
_ADD_BATCH = insert_unless_present(_batches)
_LATER_BATCH = Statement(
    update(_batches)
    .where(_batches.c.source == bindparam("of_source"), _batches.c.number < bindparam("later"))
    .values(number=bindparam("later"), noted_at=bindparam("now"))
)
_FOLLOW = Statement(update(_state).where(_state.c.eviction_rule != bindparam("rule")).values(eviction_rule=""))
_FOLLOWED = Statement(update(_state).values(eviction_rule=bindparam("rule")))
_RANKED_NEXT = Statement(
    select(_entries.c.entry_id, _entries.c.sequence)
    .where(_entries.c.doomed_at.is_(None), _entries.c.sequence > bindparam("after"))
    .order_by(_entries.c.sequence)
    .limit(bindparam("limit_count"))
)
# The last batch number of a source is stored this long: a gateway retries a batch within seconds.
_SOURCE_MEMORY_S = 86_400.0
# Entries ranked in one transaction: other writers wait two tenths of a second for it.
_RANKED_COUNT = 1000


@dataclass(frozen=True)
class UseBatch:
    """Hold the keys of objects that served, in order. `number` rises with every batch of a `source`, so that a batch
    with an unacknowledged commit can be sent again and counts once."""

    source: str
    number: int
    keys: tuple[str, ...]


class CacheUses(CachePart):
    """Count the uses of objects, and rank them for eviction."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        super().__init__(engine, clock)
        self._rule: EvictionRule = FifoRule()

    def follow(self, rule: EvictionRule) -> "Future[int]":
        """Let `rule` order evictions from now on, and return how many items it ranks again: none if it ranked them
        before. All gateways over one ledger follow the same rule."""
        self._rule = rule
        return self._writer.submit_in_parts(lambda connection: _rank_anew(connection, rule))

    @submitted
    def note_uses(self, connection: Connection, batch: UseBatch) -> int:
        """Count the uses of a batch, and return how many counted: none for a repeated batch, and no uses of removed
        objects."""
        rule = self._rule
        if not _is_new(connection, batch, self._clock.wall()):
            return 0
        first = take_ticks(connection, len(batch.keys))
        held = _grouped(_BESIDE.rows(connection, keys=set(batch.keys)))
        homes = {key: items for items in held.values() for key in items}
        used = [(tick, key) for tick, key in enumerate(batch.keys, first) if key in homes]
        for tick, key in used:
            _use(homes[key], key, tick, rule)
        _write(connection, held, rule)
        return len(used)


def new_records(first: int, items: Sequence[tuple[float, int]]) -> list[AccessRecord]:
    """Return the records of items added at ticks from `first` on, given the steps that each saves and its bytes."""
    return [AccessRecord(steps, size, first + at, first + at) for at, (steps, size) in enumerate(items)]


def columns(record: AccessRecord, rank: Rank) -> dict[str, Any]:
    """Return the access columns of an object's row."""
    return {**{name: getattr(record, name) for name in RECORD[:-2]}, "rank_score": rank[0], "rank_tie": rank[1]}


def _rank_anew(connection: Connection, rule: EvictionRule) -> tuple[int, JobPart | None]:
    """Rank all items by the rule, in parts, if another rule ranked them before; return the number ranked."""
    # The rule's name is empty until all are ranked: a process that ends between two parts leaves all to be ranked
    # again.
    if _FOLLOW.change(connection, rule=repr(rule)) == 0:
        return 0, None
    return _rank_next(connection, rule, after=-1)


def _rank_next(connection: Connection, rule: EvictionRule, after: int) -> tuple[int, JobPart | None]:
    """Rank the items of the next entries numbered above `after`."""
    # A use noted during the ranking would be lost.
    lock(connection)
    entries = _RANKED_NEXT.rows(connection, after=after, limit_count=_RANKED_COUNT)
    held = _grouped(_HELD_BY.rows(connection, entry_ids=[entry.entry_id for entry in entries]))
    _write(connection, held, rule)
    following: JobPart | None = None
    if len(entries) == _RANKED_COUNT:
        following = partial(_rank_next, rule=rule, after=entries[-1].sequence)
    else:
        _FOLLOWED.change(connection, rule=repr(rule))
    return sum(map(len, held.values())), following


def _is_new(connection: Connection, batch: UseBatch, now: float) -> bool:
    _FORGET_BATCHES.change(connection, before=now - _SOURCE_MEMORY_S)
    if _ADD_BATCH.first(connection, source=batch.source, number=batch.number, noted_at=now):
        return True
    return _LATER_BATCH.change(connection, of_source=batch.source, later=batch.number, now=now) == 1


def _grouped(rows: Iterable[Any]) -> dict[str, dict[str, AccessRecord]]:
    """Return the records of objects by entry and key."""
    held: dict[str, dict[str, AccessRecord]] = {}
    for row in rows:
        record = AccessRecord(
            row.saved_steps, row.size_bytes, row.added_tick, row.used_tick, row.use_count, row.faded_uses
        )
        held.setdefault(row.entry_id, {})[row.key] = record
    return held


def _use(items: dict[str, AccessRecord], used: str, tick: int, rule: EvictionRule) -> None:
    for key, record in items.items():
        items[key] = rule.used(record, tick) if key == used else rule.beside(record, tick)


def _write(connection: Connection, held: Mapping[str, Mapping[str, AccessRecord]], rule: EvictionRule) -> None:
    objects, entries = [], []
    for entry_id, items in held.items():
        ranks = {key: rule.rank(record) for key, record in items.items()}
        objects += [{"ranked_key": key, **columns(record, ranks[key])} for key, record in items.items()]
        score, tie = max(ranks.values())
        entries.append({"ranked_entry": entry_id, "rank_score": score, "rank_tie": tie})
    _RANK_OBJECT.each(connection, objects)
    _RANK_ENTRY.each(connection, entries)
