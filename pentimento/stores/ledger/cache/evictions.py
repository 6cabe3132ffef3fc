"""Evict from a full cache by the ranks of its rows: whole entries, or single latents and images.

An entry's rank is the highest rank of its items: it is evicted when all its items would be.

Entries newer than the last round are evicted only after all others: the paper evicts just before each insertion, so
that a new entry is never evicted (NIRVANA, 5.4).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from time import monotonic
from typing import Any

from sqlalchemy import Connection, bindparam, delete, literal_column, select, update

from pentimento.domain.cache import CacheHolding
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.entries import IS_LIVE, add_to_totals, doom_entries, set_indexed
from pentimento.stores.ledger.cache.part import CachePart, lock
from pentimento.stores.ledger.cache.uses import IS_HELD
from pentimento.stores.ledger.statements import Statement, among, insert_unless_present
from pentimento.stores.ledger.writer import JobPart, submitted

_entries = tables.entries
_objects = tables.objects
_holdings = tables.holdings
_limits = tables.tenant_limits

_BATCH_COUNT = 64
# Other writers wait for a part: two tenths of a second, half of it for the choice. With many tenants the choice takes
# longest, and ends the part early.
_PART_COUNT = 1024
_CHOOSING_S = 0.1
# Rows first read of a tenant, and the growth of each further read of a tenant that is chosen often.
_FIRST_COUNT, _GROWTH = 8, 4
# The entry of the highest number.
_LAST = 2**62
_HOLDINGS = Statement(select(_holdings))
_HOLDING = Statement(select(_holdings).where(_holdings.c.tenant == bindparam("of_tenant")))
_LIMITS = Statement(select(_limits))
_ADD_LIMIT = insert_unless_present(_limits)
_IS_ITS = _limits.c.tenant == bindparam("of_tenant")
_SET_LIMIT, _DROP_LIMIT = Statement(update(_limits).where(_IS_ITS)), Statement(delete(_limits).where(_IS_ITS))
# An expression, so that no plan takes the index of the sequence and sorts all that it finds.
_IS_OF_AGE = (_entries.c.sequence + literal_column("0")).between(bindparam("least"), bindparam("most"))
# An entry goes with its one row.
_LOWEST_ENTRIES = Statement(
    select(_entries.c.entry_id, _entries.c.size_bytes, literal_column("1").label("object_count"))
    .where(_entries.c.tenant == bindparam("of_tenant"), IS_LIVE, _IS_OF_AGE)
    .order_by(_entries.c.rank_score, _entries.c.rank_tie, _entries.c.sequence)
    .limit(bindparam("limit_count"))
    .offset(bindparam("read_count"))
)
_LOWEST_ITEMS = Statement(
    select(*_objects.c["key", "entry_id", "size_bytes", "compatibility_key"], _entries.c.object_count)
    .join(_entries, _entries.c.entry_id == _objects.c.entry_id)
    .where(_objects.c.tenant == bindparam("of_tenant"), IS_HELD, _IS_OF_AGE)
    .order_by(_objects.c.rank_score, _objects.c.rank_tie, _objects.c.key)
    .limit(bindparam("limit_count"))
    .offset(bindparam("read_count"))
)
_DETACH = Statement(update(_objects).where(among(_objects.c.key, "keys")))
_LESS = Statement(
    update(_entries)
    .where(_entries.c.entry_id == bindparam("loser"))
    .values(
        object_count=_entries.c.object_count - bindparam("lost_count"),
        size_bytes=_entries.c.size_bytes - bindparam("lost_bytes"),
    )
)
_HELD_KEYS = Statement(
    select(_objects.c.entry_id, _objects.c.compatibility_key).where(among(_objects.c.entry_id, "entry_ids")).distinct()
)
_EMPTY = Statement(
    select(_entries.c.entry_id).where(among(_entries.c.entry_id, "entry_ids"), _entries.c.object_count == 0)
)
# Chooses, by each tenant's holding, the tenant that loses its next entry or item; None for no tenant.
WhoGivesWay = Callable[[Mapping[str, CacheHolding]], str | None]


class CacheEvictions(CachePart):
    """Evict, and keep what tenants hold and may hold."""

    def evict(self, who: WhoGivesWay, grace_s: float, new_after: int | None = None) -> "Future[int]":
        """Doom the lowest entry of the tenant that `who` names until it names none, and return the number doomed.
        Entries numbered above `new_after` come after all others."""
        return self._evict_by(_let_go_of_entries, _LOWEST_ENTRIES, who, grace_s, new_after)

    def evict_items(self, who: WhoGivesWay, grace_s: float, new_after: int | None = None) -> "Future[int]":
        """Remove the lowest latent or image of the tenant that `who` names until it names none, and return their
        number. An entry without any is doomed. Items of entries above `new_after` come after all others."""
        return self._evict_by(_let_go_of_items, _LOWEST_ITEMS, who, grace_s, new_after)

    @submitted
    def limit_tenant(self, connection: Connection, tenant: str, most_bytes: int | None) -> None:
        """Store the tenant's own bound in bytes across restarts; None removes it."""
        if most_bytes is None:
            drop_limit(connection, tenant)
        elif _ADD_LIMIT.first(connection, tenant=tenant, size_bytes=most_bytes) is None:
            _SET_LIMIT.change(connection, of_tenant=tenant, size_bytes=most_bytes)

    def tenant_limits(self) -> dict[str, int]:
        """Return the bound in bytes of each tenant with its own bound."""
        return {row.tenant: row.size_bytes for row in _LIMITS.rows(self._engine)}

    def holding(self, tenant: str) -> CacheHolding:
        """Return the tenant's holding of live entries."""
        row = _HOLDING.first(self._engine, of_tenant=tenant)
        return CacheHolding(row.entry_count, row.size_bytes) if row is not None else CacheHolding(0, 0)

    def holdings(self) -> dict[str, CacheHolding]:
        """Return each tenant's holding of live entries."""
        return _holdings_of(_HOLDINGS.rows(self._engine))

    def _evict_by(
        self, let_go: "_LetGo", lowest: Statement, who: WhoGivesWay, grace_s: float, new_after: int | None
    ) -> "Future[int]":
        now = self._clock.wall()
        part = partial(_evict_part, let_go=partial(let_go, now=now, delete_after=now + grace_s))
        return self._writer.submit_in_parts(
            partial(part, lowest=lowest, who=who, new_after=new_after), self._note_removal
        )


def drop_limit(connection: Connection, tenant: str) -> None:
    """Remove the bound of a tenant."""
    _DROP_LIMIT.change(connection, of_tenant=tenant)


_LetGo = Callable[..., None]


def _evict_part(
    connection: Connection, let_go: _LetGo, lowest: Statement, who: WhoGivesWay, new_after: int | None
) -> tuple[int, JobPart | None]:
    """Let go of the lowest row of the tenant that `who` names, until it names none or the part is full; return the
    number of rows."""
    # Without the lock, another gateway's evictions after the count would be counted still, and cause further ones; two
    # that chose the same items would subtract them twice.
    lock(connection)
    chosen, is_over = _choose(connection, who, lowest, new_after)
    for batch in _batches(chosen):
        let_go(connection, batch)
    following = partial(_evict_part, let_go=let_go, lowest=lowest, who=who, new_after=new_after)
    return len(chosen), None if is_over else following


def _choose(
    connection: Connection, who: WhoGivesWay, lowest_rows: Statement, new_after: int | None
) -> tuple[list[Any], bool]:
    """Choose the rows of a part, lowest of a tenant first, and return whether no tenant has to lose more. An entry
    is lost with the last of its `object_count` rows."""
    held = _holdings_of(_HOLDINGS.rows(connection))
    lowest: dict[str, Iterator[Any]] = {}
    left: dict[str, int] = {}
    chosen: list[Any] = []
    until = monotonic() + _CHOOSING_S
    while (tenant := who(held)) is not None:
        if tenant not in lowest:
            lowest[tenant] = _old_before_new(connection, lowest_rows, tenant, new_after)
        row = next(lowest[tenant])
        chosen.append(row)
        left[row.entry_id] = left.get(row.entry_id, row.object_count) - 1
        holding = held[tenant]
        entry_count = holding.entry_count - (left[row.entry_id] == 0)
        held[tenant] = CacheHolding(entry_count, holding.size_bytes - row.size_bytes)
        if len(chosen) == _PART_COUNT or monotonic() >= until:
            return chosen, False
    return chosen, True


def _holdings_of(rows: Sequence[Any]) -> dict[str, CacheHolding]:
    return {row.tenant: CacheHolding(row.entry_count, row.size_bytes) for row in rows}


def _old_before_new(connection: Connection, lowest: Statement, tenant: str, new_after: int | None) -> Iterator[Any]:
    """Yield the tenant's rows of entries up to `new_after`, then of later ones; the rows must not change during the
    read."""
    last_old = _LAST if new_after is None else new_after
    for least, most in ((0, last_old), (last_old + 1, _LAST)):
        read, count = 0, _FIRST_COUNT
        while least <= most:
            of_page = {"least": least, "most": most, "limit_count": count, "read_count": read}
            rows = lowest.rows(connection, of_tenant=tenant, **of_page)
            yield from rows
            if len(rows) < count:
                break
            read, count = read + count, _GROWTH * count


def _batches(chosen: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(chosen), _BATCH_COUNT):
        yield chosen[start : start + _BATCH_COUNT]


def _let_go_of_entries(connection: Connection, entries: Sequence[Any], now: float, delete_after: float) -> None:
    doom_entries(connection, [entry.entry_id for entry in entries], now, delete_after)


def _let_go_of_items(connection: Connection, items: Sequence[Any], now: float, delete_after: float) -> None:
    """Detach items from their entries, so that they are deleted even if the entry lives on."""
    _DETACH.change(connection, keys=[item.key for item in items], entry_id=None, delete_after=delete_after)
    lost: dict[str, tuple[int, int]] = {}
    for item in items:
        count, size = lost.get(item.entry_id, (0, 0))
        lost[item.entry_id] = (count + 1, size + item.size_bytes)
    rows = [{"loser": entry, "lost_count": count, "lost_bytes": size} for entry, (count, size) in lost.items()]
    _LESS.each(connection, rows)
    add_to_totals(connection, 0, -len(items), -sum(item.size_bytes for item in items))
    # A search by a key under which an entry holds no items now would find it in place of entries that can serve.
    held = set(_HELD_KEYS.rows(connection, entry_ids=list(lost)))
    keyless = {item.entry_id for item in items if (item.entry_id, item.compatibility_key) not in held}
    set_indexed(connection, keyless, 0)
    doom_entries(connection, _EMPTY.scalars(connection, entry_ids=list(lost)), now, delete_after)
