"""Keep objects until a time, for images generated from them, regardless of their entries.

A pin delays only the deletion; it does not change which objects the cache stores, finds or evicts. Pins and deletions
take the lock of the cache's one row first, so that no object is pinned while it is being deleted.
"""

from collections.abc import Collection

from sqlalchemy import BindParameter, Connection, and_, bindparam, delete, exists, func, or_, select, update

from pentimento.domain.errors import NotFound
from pentimento.domain.generation import ObjectReference
from pentimento.domain.reasons import Reason
from pentimento.stores.ledger.cache import tables
from pentimento.stores.ledger.cache.part import CachePart, lock
from pentimento.stores.ledger.cache.records import ObjectPin
from pentimento.stores.ledger.statements import Statement, among, insert_unless_present
from pentimento.stores.ledger.writer import submitted

_entries = tables.entries
_objects = tables.objects
_pins = tables.pins
# Marks an object that can no longer be pinned: its bytes may be deleted already.
_BEING_DELETED = 0.0

IS_KEPT = or_(_objects.c.delete_after.is_(None), _objects.c.delete_after != _BEING_DELETED)
_IS_PINNED = exists().where(_pins.c.key == _objects.c.key, _pins.c.expires_at > bindparam("now"))
# No pin holds the object now. No NOT IN: PostgreSQL compares each with all pins if those outgrow its memory for one
# hash table.
IS_FREE = ~_IS_PINNED
_IS_KEY = _objects.c.key == bindparam("id")
_OF_TENANT: BindParameter[str] = bindparam("of_tenant")
_IS_THEIRS = or_(
    _objects.c.tenant == _OF_TENANT,
    exists().where(_entries.c.entry_id == _objects.c.entry_id, _entries.c.pool == bindparam("shared_pool")),
    # It has pinned the object already: its entry of the shared pool may have been evicted since.
    exists().where(_pins.c.tenant == _OF_TENANT, _pins.c.key == _objects.c.key),
)
_PINNABLE = Statement(
    select(_objects.c.key).where(_IS_KEY, _objects.c.digest == bindparam("of_digest"), IS_KEPT, _IS_THEIRS)
)
_ADD = insert_unless_present(_pins)
_IS_OF_REQUEST = and_(_pins.c.tenant == _OF_TENANT, _pins.c.request_id == bindparam("of_request"))
_PROLONG = Statement(update(_pins).where(_IS_OF_REQUEST, _pins.c.key == bindparam("id")))
_UNPIN = Statement(delete(_pins).where(_IS_OF_REQUEST))
_DROP = Statement(delete(_pins).where(_pins.c.key == bindparam("id")))
_ENDED = Statement(select(_pins.c.key).where(_pins.c.expires_at <= bindparam("now")).limit(1))
_DROP_ENDED = Statement(delete(_pins).where(_pins.c.expires_at <= bindparam("now")))
_DROP_OF_TENANT = Statement(delete(_pins).where(_pins.c.tenant == _OF_TENANT))
_CLAIM = Statement(
    update(_objects)
    .where(among(_objects.c.key, "keys"), _objects.c.delete_after <= bindparam("now"), IS_FREE)
    .values(delete_after=_BEING_DELETED)
    .returning(_objects.c.key)
)
_KEPT = (_objects.c.delete_after.is_not(None), _IS_PINNED)
_KEPT_BY_PINS = select(_objects.c.key, _objects.c.digest, _objects.c.size_bytes).where(*_KEPT)
_ALL_KEPT, _KEPT_OF_KEY = Statement(_KEPT_BY_PINS), Statement(_KEPT_BY_PINS.where(_IS_KEY))
_TOTALS = Statement(select(func.count(), func.coalesce(func.sum(_objects.c.size_bytes), 0)).where(*_KEPT))


class CachePins(CachePart):
    """Keep the starts of images that must stay replayable."""

    @submitted
    def pin(self, connection: Connection, wanted: ObjectPin, shared_pool: str) -> None:
        """Keep an object for a request's image until `wanted.expires_at`, in place of an earlier pin's time.

        The tenant must have made the object, or find it in the pool `shared_pool`. Fails with NotFound ANCESTOR_GONE
        for an object that is missing, is being deleted, or belongs to another tenant; the message does not say which.
        """
        lock(connection)
        reference, tenant = wanted.object, wanted.tenant
        theirs = {"of_digest": reference.digest, "of_tenant": tenant, "shared_pool": shared_pool}
        if _PINNABLE.first(connection, id=reference.key, **theirs) is None:
            raise NotFound(Reason.ANCESTOR_GONE, "object: the start of the image is no longer stored")
        _DROP_ENDED.change(connection, now=self._clock.wall())
        of_request, until = wanted.request_id, wanted.expires_at
        row = {"tenant": tenant, "request_id": of_request, "key": reference.key, "expires_at": until}
        if _ADD.first(connection, **row) is None:
            _PROLONG.change(connection, of_tenant=tenant, of_request=of_request, id=reference.key, expires_at=until)

    @submitted
    def unpin(self, connection: Connection, tenant: str, request_id: str) -> int:
        """End the pins of a request, and return their number."""
        return _UNPIN.change(connection, of_tenant=tenant, of_request=request_id)

    @submitted
    def drop_pins(self, connection: Connection, key: str) -> int:
        """End all pins of an object that is missing or corrupt, and return their number."""
        return _DROP.change(connection, id=key)

    @submitted
    def claim_deletion(self, connection: Connection, keys: Collection[str]) -> list[str]:
        """Return the deletable keys of `keys`, and block new pins on their objects, which the caller deletes."""
        now = self._clock.wall()
        lock(connection)
        _DROP_ENDED.change(connection, now=now)
        return _CLAIM.scalars(connection, keys=keys, now=now)

    def kept_by_pins(self, key: str | None = None) -> list[ObjectReference]:
        """Return the objects that only a pin keeps from deletion. `key`: restrict to that object."""
        statement, wanted = (_ALL_KEPT, {}) if key is None else (_KEPT_OF_KEY, {"id": key})
        return [ObjectReference(*row) for row in statement.rows(self._engine, now=self._clock.wall(), **wanted)]

    def pinned_totals(self) -> tuple[int, int]:
        """Return how many objects only a pin keeps from deletion, and their bytes."""
        ((count, size_bytes),) = _TOTALS.rows(self._engine, now=self._clock.wall())
        return count, int(size_bytes)

    def _let_go_of_ended_pins(self, connection: Connection, now: float) -> None:
        """Delete the ended pins, under the lock that blocks pins and deletions."""
        # Check first: every writer needs the lock of the one row.
        if _ENDED.first(connection, now=now) is not None:
            lock(connection)
            _DROP_ENDED.change(connection, now=now)


def drop_pins_of(connection: Connection, tenant: str) -> None:
    """End all pins of a tenant."""
    _DROP_OF_TENANT.change(connection, of_tenant=tenant)
