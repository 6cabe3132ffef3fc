"""Keep objects until a time, for images generated from them, regardless of their entries.

A pin delays only the deletion; it does not change which objects the cache stores, finds or evicts. Pins and deletions
take the lock of the cache's one row first, so that no object is pinned while it is being deleted.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, insert, or_, select, update

from pentimento.domain.errors import NotFound
from pentimento.domain.reasons import Reason
from pentimento.stores.ledger import cache_tables as tables
from pentimento.stores.ledger.cache_access import take_ticks
from pentimento.stores.ledger.cache_records import ObjectPin

_entries = tables.entries
_objects = tables.objects
_pins = tables.pins
# Marks an object that can no longer be pinned: its bytes may be deleted already.
_BEING_DELETED = 0.0


def pin(connection: Connection, wanted: ObjectPin, now: float, shared_pool: str) -> None:
    """Keep an object for a request's image until `wanted.expires_at`, in place of an earlier pin's time.

    The tenant must have made the object, or find it in the shared pool. Raises NotFound ANCESTOR_GONE for an object
    that is missing, is being deleted, or belongs to another tenant; the message does not say which.
    """
    take_ticks(connection, 0)
    reference = wanted.object
    is_there = and_(
        _objects.c.key == reference.key,
        _objects.c.digest == reference.digest,
        or_(_objects.c.delete_after.is_(None), _objects.c.delete_after != _BEING_DELETED),
    )
    in_shared_pool = exists().where(_entries.c.entry_id == _objects.c.entry_id, _entries.c.pool == shared_pool)
    is_theirs = or_(_objects.c.tenant == wanted.tenant, in_shared_pool, _of(wanted.tenant, reference.key))
    if connection.execute(select(_objects.c.key).where(is_there, is_theirs)).first() is None:
        raise NotFound(Reason.ANCESTOR_GONE, "object: the start of the image is no longer stored")
    _let_go_of_old(connection, now)
    row = {"tenant": wanted.tenant, "request_id": wanted.request_id, "key": reference.key}
    changed = update(_pins).where(*(_pins.c[name] == value for name, value in row.items()))
    if connection.execute(changed.values(expires_at=wanted.expires_at)).rowcount == 0:
        connection.execute(insert(_pins), {**row, "expires_at": wanted.expires_at})


def unpin(connection: Connection, tenant: str, request_id: str) -> int:
    """End the pins of a request, and return their number."""
    mine = and_(_pins.c.tenant == tenant, _pins.c.request_id == request_id)
    return connection.execute(delete(_pins).where(mine)).rowcount


def let_go_of_ended(connection: Connection, now: float) -> None:
    """Delete the ended pins, under the lock that blocks pins and deletions."""
    # Check first: every writer needs the lock of the one row.
    if connection.execute(select(_pins.c.key).where(_pins.c.expires_at <= now).limit(1)).first() is not None:
        take_ticks(connection, 0)
        _let_go_of_old(connection, now)


def drop_pins(connection: Connection, key: str) -> int:
    """End all pins of an object that is missing or corrupt, and return their number."""
    return connection.execute(delete(_pins).where(_pins.c.key == key)).rowcount


def is_free(now: float) -> ColumnElement[bool]:
    """Return the condition that no pin holds an object now."""
    # No NOT IN: PostgreSQL compares each with all pins if those outgrow its memory for one hash table.
    return ~_is_pinned(now)


def claim_deletion(connection: Connection, keys: Collection[str], now: float) -> list[str]:
    """Mark the deletable keys of `keys` as being deleted, and return them."""
    take_ticks(connection, 0)
    _let_go_of_old(connection, now)
    due = and_(_objects.c.key.in_(keys), _objects.c.delete_after <= now, is_free(now))
    return list(
        connection.scalars(update(_objects).where(due).values(delete_after=_BEING_DELETED).returning(_objects.c.key))
    )


def kept_by_pins(columns: Iterable[ColumnElement[Any]], now: float) -> Select[Any]:
    """Select `columns` of the doomed objects that only a pin keeps."""
    return select(*columns).where(_objects.c.delete_after.is_not(None), _is_pinned(now))


def contradictions(connection: Connection, now: float) -> Iterator[str]:
    """Yield a sentence for each pin of an object that is missing, or is being deleted."""
    there = exists().where(
        _objects.c.key == _pins.c.key,
        or_(_objects.c.delete_after.is_(None), _objects.c.delete_after != _BEING_DELETED),
    )
    lost = select(_pins.c.request_id, _pins.c.key).where(_pins.c.expires_at > now, ~there)
    for request_id, key in connection.execute(lost):
        yield f"the pin of request {request_id} is on object {key}, which is not kept"


def _is_pinned(now: float) -> ColumnElement[bool]:
    return exists().where(_pins.c.key == _objects.c.key, _pins.c.expires_at > now)


def _of(tenant: str, key: str) -> ColumnElement[bool]:
    """Return whether the tenant has pinned the object already: its entry of the shared pool may have been evicted
    since."""
    return exists().where(_pins.c.tenant == tenant, _pins.c.key == key)


def _let_go_of_old(connection: Connection, now: float) -> None:
    connection.execute(delete(_pins).where(_pins.c.expires_at <= now))
