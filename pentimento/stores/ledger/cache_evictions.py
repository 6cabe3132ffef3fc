"""What leaves a full cache, by the ranks of its rows: whole entries, or single latents and images.

An entry's rank is the highest of what it holds: it goes when all of it would.

What came after the last round is no part of the order until the others are gone: the paper lets go just before each
insertion, so that what is new is never among it (NIRVANA, 5.4; `policies.eviction.make_room`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select, update

from pentimento.domain.cache import CacheHolding
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.cache_access import IS_HELD, take_ticks
from pentimento.stores.ledger.cache_writes import add_to_totals, doom
from pentimento.stores.ledger.writer import JobPart

_entries = tables.entries
_objects = tables.objects

_BATCH_COUNT = 64
# Others wait for a part: two tenths of a second.
_PART_COUNT = 2048
_IS_LIVE = _entries.c.doomed_at.is_(None)
_LESS = (
    update(_entries)
    .where(_entries.c.entry_id == bindparam("loser"))
    .values(
        object_count=_entries.c.object_count - bindparam("lost_count"),
        size_bytes=_entries.c.size_bytes - bindparam("lost_bytes"),
    )
)
# By what tenants hold, whose entry or item goes next; None when nobody's does.
WhoGivesWay = Callable[[Mapping[str, CacheHolding]], str | None]


def holdings(connection: Connection) -> dict[str, CacheHolding]:
    """Return what each tenant holds in live entries."""
    rows = connection.execute(select(tables.holdings))
    return {row.tenant: CacheHolding(row.entry_count, row.size_bytes) for row in rows}


def evict(
    connection: Connection, who: WhoGivesWay, now: float, delete_after: float, new_after: int | None = None
) -> tuple[int, JobPart | None]:
    """Doom the lowest entry of the tenant that `who` names, until it names none or the part is full; return the number
    doomed. Entries whose number is above `new_after` go after all others."""
    # What another gateway lets go of between the count and the choice would be counted still, and others go for it.
    take_ticks(connection, 0)
    held, evicted = holdings(connection), 0
    while chosen := _choose_entries(connection, held, who, new_after):
        evicted += doom(connection, chosen, now, delete_after)
        if evicted >= _PART_COUNT:
            return evicted, partial(evict, who=who, now=now, delete_after=delete_after, new_after=new_after)
    return evicted, None


def evict_items(
    connection: Connection, who: WhoGivesWay, now: float, delete_after: float, new_after: int | None = None
) -> tuple[int, JobPart | None]:
    """Let go of the lowest item of the tenant that `who` names, until it names none or the part is full; return the
    number of items. Those of entries whose number is above `new_after` go after all others.

    An entry that has none left is doomed.
    """
    # Two gateways that chose the same items would count them off twice.
    take_ticks(connection, 0)
    held, evicted = holdings(connection), 0
    while chosen := _choose_items(connection, held, who, new_after):
        _let_go(connection, chosen, now, delete_after)
        evicted += len(chosen)
        if evicted >= _PART_COUNT:
            return evicted, partial(evict_items, who=who, now=now, delete_after=delete_after, new_after=new_after)
    return evicted, None


def _choose_entries(
    connection: Connection, held: dict[str, CacheHolding], who: WhoGivesWay, new_after: int | None
) -> list[str]:
    """Choose a batch of entries at most; `held` is what is left without them."""
    lowest: dict[str, Iterator[Any]] = {}
    chosen: list[str] = []
    while len(chosen) < _BATCH_COUNT and (tenant := who(held)) is not None:
        if tenant not in lowest:
            lowest[tenant] = iter(_lowest_entries(connection, tenant, new_after))
        entry = next(lowest[tenant])
        chosen.append(entry.entry_id)
        holding = held[tenant]
        held[tenant] = CacheHolding(holding.entry_count - 1, holding.size_bytes - entry.size_bytes)
    return chosen


def _lowest_entries(connection: Connection, tenant: str, new_after: int | None) -> Sequence[Any]:
    order = (_entries.c.rank_score, _entries.c.rank_tie, _entries.c.sequence)
    statement = select(_entries.c.entry_id, _entries.c.size_bytes).where(_entries.c.tenant == tenant, _IS_LIVE)
    return _old_before_new(connection, statement.order_by(*order), new_after)


def _choose_items(
    connection: Connection, held: dict[str, CacheHolding], who: WhoGivesWay, new_after: int | None
) -> list[Any]:
    """Choose a batch of items at most; `held` is what is left without them."""
    lowest: dict[str, Iterator[Any]] = {}
    left: dict[str, int] = {}
    chosen: list[Any] = []
    while len(chosen) < _BATCH_COUNT and (tenant := who(held)) is not None:
        if tenant not in lowest:
            lowest[tenant] = iter(_lowest_items(connection, tenant, new_after))
        item = next(lowest[tenant])
        chosen.append(item)
        left[item.entry_id] = left.get(item.entry_id, item.object_count) - 1
        holding = held[tenant]
        entry_count = holding.entry_count - (left[item.entry_id] == 0)
        held[tenant] = CacheHolding(entry_count, holding.size_bytes - item.size_bytes)
    return chosen


def _lowest_items(connection: Connection, tenant: str, new_after: int | None) -> Sequence[Any]:
    order = (_objects.c.rank_score, _objects.c.rank_tie, _objects.c.key)
    columns = (_objects.c.key, _objects.c.entry_id, _objects.c.size_bytes, _objects.c.compatibility_key)
    items = select(*columns, _entries.c.object_count)
    of_tenant = items.join(_entries, _entries.c.entry_id == _objects.c.entry_id).where(
        _objects.c.tenant == tenant, IS_HELD
    )
    return _old_before_new(connection, of_tenant.order_by(*order), new_after)


def _old_before_new(connection: Connection, ordered: Select[Any], new_after: int | None) -> Sequence[Any]:
    """A batch of what `ordered` selects of entries up to that number, and where they are too few of those after."""
    if new_after is None:
        return connection.execute(ordered.limit(_BATCH_COUNT)).all()
    of_old, of_new = _entries.c.sequence <= new_after, _entries.c.sequence > new_after
    old = connection.execute(ordered.where(of_old).limit(_BATCH_COUNT)).all()
    if len(old) == _BATCH_COUNT:
        return old
    return [*old, *connection.execute(ordered.where(of_new).limit(_BATCH_COUNT - len(old)))]


def _let_go(connection: Connection, items: Sequence[Any], now: float, delete_after: float) -> None:
    """Their entries no longer name them, so they are deleted although an entry of theirs may live on."""
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
    """Have the index forget the keys under which an entry holds nothing any more: found by them it would stand in the
    place of entries that can serve."""
    columns = (_objects.c.entry_id, _objects.c.compatibility_key)
    held = select(*columns).where(_objects.c.entry_id.in_({entry_id for entry_id, _ in lost})).distinct()
    keyless = {entry_id for entry_id, _ in lost.difference(tuple(row) for row in connection.execute(held))}
    connection.execute(update(_entries).where(_entries.c.entry_id.in_(keyless)).values(indexed=0))
