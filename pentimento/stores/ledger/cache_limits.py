"""Store the cache bounds of single tenants in its ledger, so that they survive a restart."""

from sqlalchemy import Connection, delete, select, update

from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.database import insert_unless_present

_limits = tables.tenant_limits


def limit_tenant(connection: Connection, tenant: str, most_bytes: int | None) -> None:
    """Store the bound of a tenant; None removes it."""
    is_its = _limits.c.tenant == tenant
    if most_bytes is None:
        connection.execute(delete(_limits).where(is_its))
    elif not insert_unless_present(connection, _limits, {"tenant": tenant, "size_bytes": most_bytes}):
        connection.execute(update(_limits).where(is_its).values(size_bytes=most_bytes))


def tenant_limits(connection: Connection) -> dict[str, int]:
    """Return the bytes of every tenant that has a bound."""
    return {row.tenant: row.size_bytes for row in connection.execute(select(_limits))}
