"""Evict from a full cache by the ranks of its rows: whole entries, or single latents and images.

An entry's rank is the highest rank of its items: it is evicted when all its items would be.

Entries newer than the last round are evicted only after all others: the paper evicts just before each insertion, so
that a new entry is never evicted (NIRVANA, 5.4).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Select, bindparam, literal_column, select, update

from pentimento.domain.cache import CacheHolding
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.cache_access import IS_HELD, take_ticks
from pentimento.stores.ledger.cache_writes import add_to_totals, doom
from pentimento.stores.ledger.writer import JobPart

_entries = tables.entries
_objects = tables.objects

_BATCH_COUNT = 64
# Other writers wait for a part: two tenths of a second, half of it for the choice. With many tenants the choice takes
# longest, and ends the part early.
_PART_COUNT = 1024
_CHOOSING_S = 0.1
# Rows first read of a tenant, and the growth of each further read of a tenant that is chosen often.
_FIRST_COUNT, _GROWTH = 8, 4
_IS_LIVE = _entries.c.doomed_at.is_(None)
_LESS = (
    update(_entries)
    .where(_entries.c.entry_id == bindparam("loser"))
    .values(
        object_count=_entries.c.object_count - bindparam("lost_count"),
        size_bytes=_entries.c.size_bytes - bindparam("lost_bytes"),
    )
)
# Chooses, by each tenant's holding, the tenant that loses its next entry or item; None for no tenant.
WhoGivesWay = Callable[[Mapping[str, CacheHolding]], str | None]


def holdings(connection: Connection) -> dict[str, CacheHolding]:
    """Return each tenant's holding of live entries."""
    rows = connection.execute(select(tables.holdings))
    return {row.tenant: CacheHolding(row.entry_count, row.size_bytes) for row in rows}


def evict(
    connection: Connection, who: WhoGivesWay, now: float, delete_after: float, new_after: int | None = None
) -> tuple[int, JobPart | None]:
    """Doom the lowest entry of the tenant that `who` names, until it names none or the part is full; return the number
    doomed. Entries numbered above `new_after` come after all others."""
    # Without the lock, another gateway's evictions after the count would be counted still, and cause further ones.
    take_ticks(connection, 0)
    chosen, is_over = _choose(connection, who, _lowest_entries, new_after)
    evicted = sum(
        doom(connection, [entry.entry_id for entry in batch], now, delete_after) for batch in _batches(chosen)
    )
    following = partial(evict, who=who, now=now, delete_after=delete_after, new_after=new_after)
    return evicted, None if is_over else following


def evict_items(
    connection: Connection, who: WhoGivesWay, now: float, delete_after: float, new_after: int | None = None
) -> tuple[int, JobPart | None]:
    """Remove the lowest item of the tenant that `who` names, until it names none or the part is full; return the number
    of items. Items of entries numbered above `new_after` come after all others.

    An entry without items is doomed.
    """
    # Two gateways that chose the same items would subtract them twice.
    take_ticks(connection, 0)
    chosen, is_over = _choose(connection, who, _lowest_items, new_after)
    for batch in _batches(chosen):
        _let_go(connection, batch, now, delete_after)
    following = partial(evict_items, who=who, now=now, delete_after=delete_after, new_after=new_after)
    return len(chosen), None if is_over else following


def _choose(
    connection: Connection, who: WhoGivesWay, lowest_of: Callable[[str], Select[Any]], new_after: int | None
) -> tuple[list[Any], bool]:
    """Choose the rows of a part, lowest of a tenant first, and return whether no tenant has to lose more. An entry
    is lost with the last of its `object_count` rows."""
    held = holdings(connection)
    lowest: dict[str, Iterator[Any]] = {}
    left: dict[str, int] = {}
    chosen: list[Any] = []
    until = monotonic() + _CHOOSING_S
    while (tenant := who(held)) is not None:
        if tenant not in lowest:
            lowest[tenant] = _old_before_new(connection, lowest_of(tenant), new_after)
        row = next(lowest[tenant])
        chosen.append(row)
        left[row.entry_id] = left.get(row.entry_id, row.object_count) - 1
        holding = held[tenant]
        entry_count = holding.entry_count - (left[row.entry_id] == 0)
        held[tenant] = CacheHolding(entry_count, holding.size_bytes - row.size_bytes)
        if len(chosen) == _PART_COUNT or monotonic() >= until:
            return chosen, False
    return chosen, True


def _lowest_entries(tenant: str) -> Select[Any]:
    # An entry goes with its one row.
    found = select(_entries.c.entry_id, _entries.c.size_bytes, literal_column("1").label("object_count"))
    order = (_entries.c.rank_score, _entries.c.rank_tie, _entries.c.sequence)
    return found.where(_entries.c.tenant == tenant, _IS_LIVE).order_by(*order)


def _lowest_items(tenant: str) -> Select[Any]:
    columns = (_objects.c.key, _objects.c.entry_id, _objects.c.size_bytes, _objects.c.compatibility_key)
    items = select(*columns, _entries.c.object_count).join(_entries, _entries.c.entry_id == _objects.c.entry_id)
    order = (_objects.c.rank_score, _objects.c.rank_tie, _objects.c.key)
    return items.where(_objects.c.tenant == tenant, IS_HELD).order_by(*order)


def _old_before_new(connection: Connection, ordered: Select[Any], new_after: int | None) -> Iterator[Any]:
    """Yield rows of `ordered` of entries up to `new_after`, then of later ones; the rows must not change during the
    read."""
    if new_after is None:
        yield from _by_pages(connection, ordered)
        return
    yield from _by_pages(connection, ordered.where(_entries.c.sequence <= new_after))
    yield from _by_pages(connection, ordered.where(_entries.c.sequence > new_after))


def _by_pages(connection: Connection, ordered: Select[Any]) -> Iterator[Any]:
    read, count = 0, _FIRST_COUNT
    while rows := connection.execute(ordered.limit(count).offset(read)).all():
        yield from rows
        if len(rows) < count:
            return
        read, count = read + count, _GROWTH * count


def _batches(chosen: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(chosen), _BATCH_COUNT):
        yield chosen[start : start + _BATCH_COUNT]


def _let_go(connection: Connection, items: Sequence[Any], now: float, delete_after: float) -> None:
    """Detach items from their entries, so that they are deleted even if the entry lives on."""
    keys = [item.key for item in items]
    gone = update(_objects).where(_objects.c.key.in_(keys)).values(entry_id=None, delete_after=delete_after)
    connection.execute(gone)
    lost: dict[str, tuple[int, int]] = {}
    for item in items:
        count, size = lost.get(item.entry_id, (0, 0))
        lost[item.entry_id] = (count + 1, size + item.size_bytes)
    rows = [{"loser": entry, "lost_count": count, "lost_bytes": size} for entry, (count, size) in lost.items()]
    connection.execute(_LESS, rows)
    add_to_totals(connection, 0, -len(items), -sum(item.size_bytes for item in items))
    _index_anew(connection, {(item.entry_id, item.compatibility_key) for item in items})
    empty = select(_entries.c.entry_id).where(_entries.c.entry_id.in_(lost), _entries.c.object_count == 0)
    doom(connection, list(connection.scalars(empty)), now, delete_after)


def _index_anew(connection: Connection, lost: set[tuple[str, str]]) -> None:
    """Have the index remove the keys under which an entry holds no items now: a search by them would find it in place
    of entries that can serve."""
    columns = (_objects.c.entry_id, _objects.c.compatibility_key)
    held = select(*columns).where(_objects.c.entry_id.in_({entry_id for entry_id, _ in lost})).distinct()
    keyless = {entry_id for entry_id, _ in lost.difference(tuple(row) for row in connection.execute(held))}
    connection.execute(update(_entries).where(_entries.c.entry_id.in_(keyless)).values(indexed=0))
