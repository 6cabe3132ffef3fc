"""Find contradictions between the cache's rows."""

from collections.abc import Iterator

from sqlalchemy import Connection, exists, func, select

from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.entry_reads import IS_LIVE

_entries = tables.entries
_objects = tables.objects


def contradictions(connection: Connection) -> Iterator[str]:
    """Yield a sentence for each total and holding that differs from the rows, and each object without an owner."""
    state = connection.execute(select(tables.state)).one()
    counted = connection.execute(
        select(
            func.count(),
            func.coalesce(func.sum(_entries.c.object_count), 0),
            func.coalesce(func.sum(_entries.c.size_bytes), 0),
        ).where(IS_LIVE)
    ).one()
    kept = (state.entry_count, state.object_count, state.size_bytes)
    rows = tuple(map(int, counted))  # PostgreSQL sums to Decimal
    if kept != rows:
        yield f"totals say {kept} entries, objects and bytes, rows {rows}"
    sums = (_entries.c.tenant, func.count(), func.sum(_entries.c.size_bytes))
    summed = connection.execute(select(*sums).where(IS_LIVE).group_by(_entries.c.tenant))
    there = {tenant: (count, int(size_bytes)) for tenant, count, size_bytes in summed}
    held = {row.tenant: (row.entry_count, row.size_bytes) for row in connection.execute(select(tables.holdings))}
    for tenant in sorted(there.keys() | held.keys()):
        if held.get(tenant) != there.get(tenant):
            yield f"tenant {tenant} is said to hold {held.get(tenant)} entries and bytes, rows {there.get(tenant)}"
    homeless = select(_objects.c.key).where(
        _objects.c.delete_after.is_(None),
        ~exists().where(tables.grants.c.grant_id == _objects.c.grant_id),
        ~exists().where(_entries.c.entry_id == _objects.c.entry_id, IS_LIVE),
    )
    for key in connection.scalars(homeless):
        yield f"object {key} belongs to no grant and no live entry, and is not doomed"
