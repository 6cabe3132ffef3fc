"""Find contradictions between the cache's rows."""

from collections.abc import Iterator

from sqlalchemy import bindparam, exists, func, select

from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.entries import IS_LIVE
from pentimento.stores.ledger.cache.part import CachePart
from pentimento.stores.ledger.cache.pins import IS_KEPT
from pentimento.stores.ledger.statements import Statement

_entries = tables.entries
_objects = tables.objects
_pins = tables.pins
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
