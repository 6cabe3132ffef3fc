"""Store access records as columns of the cache's rows, with the ranks that an eviction rule computes from them.

Ticks come from one counter of the whole cache. Taking them locks its row until the commit, so gateways over one ledger
change records one after the other, and no use is lost between a read and its write.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, select, update

from pentimento.domain.access import AccessRecord, EvictionRule, Rank
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.database import insert_unless_present
from pentimento.stores.ledger.writer import JobPart

_entries = tables.entries
_objects = tables.objects
_state = tables.state
_batches = tables.use_batches

RECORD = ("saved_steps", "added_tick", "used_tick", "use_count", "faded_uses", "rank_score", "rank_tie")
_RANK_OBJECT = (
    update(_objects)
    .where(_objects.c.key == bindparam("ranked_key"))
    .values({name: bindparam(f"new_{name}") for name in RECORD})
)
_RANK_ENTRY = (
    update(_entries)
    .where(_entries.c.entry_id == bindparam("ranked_entry"))
    .values(rank_score=bindparam("new_rank_score"), rank_tie=bindparam("new_rank_tie"))
)
IS_HELD = _objects.c.entry_id.is_not(None) & _objects.c.delete_after.is_(None)
_HELD = select(_objects.c.key, _objects.c.entry_id, _objects.c.size_bytes, *(_objects.c[name] for name in RECORD))
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


def take_ticks(connection: Connection, count: int) -> int:
    """Take `count` ticks, and return the first one."""
    statement = update(_state).values(tick=_state.c.tick + count).returning(_state.c.tick)
    return int(connection.execute(statement).scalar_one()) - count + 1


def new_records(first: int, items: Sequence[tuple[float, int]]) -> list[AccessRecord]:
    """Return the records of items added at ticks from `first` on, given the steps that each saves and its bytes."""
    return [AccessRecord(steps, size, first + at, first + at) for at, (steps, size) in enumerate(items)]


def columns(record: AccessRecord, rank: Rank) -> dict[str, Any]:
    """Return the access columns of an object's row."""
    return {
        "saved_steps": record.saved_steps,
        "added_tick": record.added_tick,
        "used_tick": record.used_tick,
        "use_count": record.use_count,
        "faded_uses": record.faded_uses,
        "rank_score": rank[0],
        "rank_tie": rank[1],
    }


def note_uses(connection: Connection, rule: EvictionRule, batch: UseBatch, now: float) -> int:
    """Count the uses of a batch, and return how many counted: none for a repeated batch, and no uses of removed
    objects."""
    if not _is_new(connection, batch, now):
        return 0
    first = take_ticks(connection, len(batch.keys))
    held = _entries_of(connection, batch.keys)
    homes = {key: items for items in held.values() for key in items}
    counted = 0
    for tick, key in enumerate(batch.keys, first):
        if key in homes:
            counted += 1
            _use(homes[key], key, tick, rule)
    _write(connection, held, rule)
    return counted


def rank_anew(connection: Connection, rule: EvictionRule) -> tuple[int, JobPart | None]:
    """Rank all items by the rule, in parts, if another rule ranked them before; return the number ranked."""
    # The rule's name is empty until all are ranked: a process that ends between two parts leaves all to be ranked
    # again.
    changed = update(_state).where(_state.c.eviction_rule != repr(rule)).values(eviction_rule="")
    if connection.execute(changed).rowcount == 0:
        return 0, None
    return _rank_next(connection, rule, after=-1)


def _rank_next(connection: Connection, rule: EvictionRule, after: int) -> tuple[int, JobPart | None]:
    """Rank the items of the next entries numbered above `after`."""
    # A use noted during the ranking would be lost.
    take_ticks(connection, 0)
    next_ones = select(_entries.c.entry_id, _entries.c.sequence).where(
        _entries.c.doomed_at.is_(None), _entries.c.sequence > after
    )
    entries = connection.execute(next_ones.order_by(_entries.c.sequence).limit(_RANKED_COUNT)).all()
    of_them = _objects.c.entry_id.in_([entry.entry_id for entry in entries])
    held = _grouped(connection.execute(_HELD.where(of_them, IS_HELD)))
    _write(connection, held, rule)
    following: JobPart | None = None
    if len(entries) == _RANKED_COUNT:
        following = partial(_rank_next, rule=rule, after=entries[-1].sequence)
    else:
        connection.execute(update(_state).values(eviction_rule=repr(rule)))
    return sum(map(len, held.values())), following


def _is_new(connection: Connection, batch: UseBatch, now: float) -> bool:
    connection.execute(delete(_batches).where(_batches.c.noted_at < now - _SOURCE_MEMORY_S))
    row = {"source": batch.source, "number": batch.number, "noted_at": now}
    if insert_unless_present(connection, _batches, row):
        return True
    later = update(_batches).where(_batches.c.source == batch.source, _batches.c.number < batch.number)
    return connection.execute(later.values(number=batch.number, noted_at=now)).rowcount == 1


def _entries_of(connection: Connection, keys: Sequence[str]) -> dict[str, dict[str, AccessRecord]]:
    """Return the items of all entries that hold these objects, by entry, with their records."""
    homes = select(_objects.c.entry_id).where(_objects.c.key.in_(set(keys)), IS_HELD)
    return _grouped(connection.execute(_HELD.where(_objects.c.entry_id.in_(homes), IS_HELD).order_by(_objects.c.key)))


def _grouped(rows: Iterable[Row[Any]]) -> dict[str, dict[str, AccessRecord]]:
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
        for key, record in items.items():
            new = {f"new_{name}": value for name, value in columns(record, ranks[key]).items()}
            objects.append({"ranked_key": key, **new})
        score, tie = max(ranks.values())
        entries.append({"ranked_entry": entry_id, "new_rank_score": score, "new_rank_tie": tie})
    if objects:
        connection.execute(_RANK_OBJECT, objects)
        connection.execute(_RANK_ENTRY, entries)
