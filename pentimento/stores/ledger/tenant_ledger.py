"""Keep the ledger of tenants: their quotas, their keys by digest, and their usage by the hour."""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from pentimento.domain.clock import Clock
from pentimento.domain.errors import FailedPrecondition, NotFound, ResourceExhausted
from pentimento.domain.tenants import HashedKey, Tenant, TenantBook, TenantKey, TenantQuota, UsageRow, next_identity
from pentimento.files.json_values import from_json, to_json
from pentimento.stores.ledger import tenant_tables as tables
from pentimento.stores.ledger.statements import Statement, insert_unless_present
from pentimento.stores.ledger.writer import GroupCommitWriter, submitted

_book = tables.book
_tenants = tables.tenants
_keys = tables.keys_of_tenants
_usage = tables.usage
_departures = tables.departures

_NOW = bindparam("now", type_=_keys.c.expires_at.type)


def _is_good() -> ColumnElement[bool]:
    still = or_(_keys.c.expires_at.is_(None), _keys.c.expires_at > _NOW)
    return and_(still, or_(_keys.c.revoked_at.is_(None), _keys.c.revoked_at > _NOW))


_NAME: Any = bindparam("name")
_REVISION, _CHANGE = Statement(select(_book.c.revision)), Statement(update(_book).values(revision=_book.c.revision + 1))
_TENANTS = Statement(select(_tenants).order_by(_tenants.c.tenant))
_TENANT_COUNT = Statement(select(func.count()).select_from(_tenants))
_KNOWN = Statement(select(_tenants.c.tenant).where(_tenants.c.tenant == _NAME))
_ADD_TENANT = insert_unless_present(_tenants)
_IS_REVISION = and_(_tenants.c.tenant == _NAME, _tenants.c.revision == bindparam("from_revision"))
_UPDATE = Statement(update(_tenants).where(_IS_REVISION).returning(*_tenants.c))
_DELETE = Statement(delete(_tenants).where(_tenants.c.tenant == _NAME).returning(*_tenants.c))
_TENANT = Statement(select(_tenants).where(_tenants.c.tenant == _NAME))
_RENEW = Statement(update(_tenants).where(_tenants.c.tenant == _NAME))
_ADD_DEPARTURE = Statement(insert(_departures))
_DEPARTURE_COUNT = Statement(select(func.count()).select_from(_departures).where(_departures.c.tenant == _NAME))
_LAST = select(_departures).where(_departures.c.tenant == _NAME).order_by(_departures.c.deleted_at.desc()).limit(1)
_IS_WHOLE = and_(_departures.c.erase_at.is_(None), _departures.c.began_at.is_(None))
_LAST_DEPARTURE = Statement(_LAST.where(_departures.c.deleted_at > bindparam("since"), _IS_WHOLE))
_DROP_DEPARTURE = Statement(delete(_departures).where(_departures.c.tenant_id == bindparam("id")))
_IDENTITY = Statement(select(_tenants.c.tenant_id).where(_tenants.c.tenant == _NAME))
_LAST_IDENTITY = Statement(_LAST.with_only_columns(_departures.c.tenant_id))
_GOOD_KEYS = Statement(select(_keys).where(_is_good()).order_by(_keys.c.key_id))
_IS_ITS_GOOD_KEY = (_keys.c.tenant == _NAME, _is_good())
_KEYS = Statement(select(_keys).where(*_IS_ITS_GOOD_KEY).order_by(_keys.c.created_at))
_KEY_COUNT = Statement(select(func.count()).select_from(_keys).where(*_IS_ITS_GOOD_KEY))
_ADD_KEY = Statement(insert(_keys))
_IS_KEY = _keys.c.key_id == bindparam("id")
_KEY = Statement(select(_keys).where(_IS_KEY))
_END_KEY = Statement(update(_keys).where(_IS_KEY).returning(*_keys.c))
_REVOKE = Statement(
    update(_keys).where(_IS_KEY).values(revoked_at=func.coalesce(_keys.c.revoked_at, _NOW)).returning(*_keys.c)
)
_ADD_USAGE = insert_unless_present(_usage)
_MORE_USAGE = Statement(
    update(_usage)
    .where(*(_usage.c[name] == bindparam(f"of_{name}") for name in ("tenant", "hour_at", "counter")))
    .values(amount=_usage.c.amount + bindparam("more"))
)
_USAGE = Statement(
    select(_usage)
    .where(_usage.c.tenant == _NAME, _usage.c.hour_at >= bindparam("from_at"), _usage.c.hour_at < bindparam("to_at"))
    .order_by(_usage.c.hour_at, _usage.c.counter)
)
_FORGET_USAGE = Statement(delete(_usage).where(_usage.c.hour_at < bindparam("before")))
_BEFORE = bindparam("before", type_=_keys.c.expires_at.type)
_FORGET_KEYS = Statement(delete(_keys).where(or_(_keys.c.revoked_at < _BEFORE, _keys.c.expires_at < _BEFORE)))

MAX_TENANTS = 10_000
# Valid keys of one tenant: each costs memory in every process that accepts it.
MAX_KEYS = 20
# Ended keys are listed for this long.
ENDED_KEYS_S = 30 * 86_400.0


class TenantLedger:
    """Read and change tenants through the journal's writer. Every method returns immediately; its future resolves after
    the commit that makes the answer durable, and fails with StoreFull or StoreUnavailable. All except `revision`,
    `book`, `tenants`, `keys` and `usage` change state."""

    def __init__(self, writer: GroupCommitWriter, clock: Clock) -> None:
        self._submit = writer.submit
        self._clock = clock

    def revision(self) -> "Future[int]":
        """Return the revision of tenants and keys: it differs after every change."""
        return self._submit(_revision)

    @submitted
    def book(self, connection: Connection) -> TenantBook:
        """Return all tenants, and all valid keys."""
        # Read the revision first: a change during the rest of the read causes another read.
        revision = _revision(connection)
        found = _GOOD_KEYS.rows(connection, now=self._clock.wall())
        keys = tuple(HashedKey(_key_of(row), row.digest) for row in found)
        return TenantBook(revision, tuple(_read_tenants(connection)), keys)

    def tenants(self) -> "Future[list[Tenant]]":
        """Return all tenants by name."""
        return self._submit(_read_tenants)

    @submitted
    def create(self, connection: Connection, name: str, quota: TenantQuota) -> Tenant:
        """Make a tenant. Fails with FailedPrecondition TENANT_EXISTS, ResourceExhausted TOO_MANY_TENANTS."""
        note_change(connection)
        if _TENANT_COUNT.scalar(connection) >= MAX_TENANTS:
            raise ResourceExhausted("TOO_MANY_TENANTS", f"there are {MAX_TENANTS} tenants, as many as there may be")
        identity = next_identity(name, _DEPARTURE_COUNT.scalar(connection, name=name))
        tenant = Tenant(name, quota, self._clock.wall(), tenant_id=identity)
        _insert(connection, tenant)
        return tenant

    @submitted
    def update(self, connection: Connection, name: str, quota: TenantQuota, revision: int) -> Tenant:
        """Replace a tenant's quota. Fails with NotFound UNKNOWN_TENANT, FailedPrecondition TENANT_CHANGED if it has
        another revision by now."""
        note_change(connection)
        wanted = {"name": name, "from_revision": revision, "revision": revision + 1}
        changed = _UPDATE.first(connection, quota=_document(quota), **wanted)
        if changed is None:
            _check_known(connection, name)
            raise FailedPrecondition("TENANT_CHANGED", f"revision: {revision} is not the newest of tenant {name}")
        return _tenant_of(changed)

    @submitted
    def delete(self, connection: Connection, name: str) -> None:
        """Delete a tenant and its keys; its data are kept until `ErasureLedger.due` names it. Fails with NotFound
        UNKNOWN_TENANT."""
        note_change(connection)
        if not delete_tenant(connection, name, self._clock.wall()):
            raise unknown_tenant(name)

    @submitted
    def restore(self, connection: Connection, name: str, deleted_after: float) -> Tenant:
        """Bring back the last tenant of that name, without keys, if it was deleted after that time. Fails with NotFound
        UNKNOWN_TENANT, FailedPrecondition TENANT_EXISTS."""
        note_change(connection)
        found = _LAST_DEPARTURE.first(connection, name=name, since=deleted_after)
        if found is None:
            raise NotFound("UNKNOWN_TENANT", f"name: no tenant {name} was deleted whose data are still kept")
        _DROP_DEPARTURE.change(connection, id=found.tenant_id)
        tenant = _tenant_of(found)
        _insert(connection, tenant)
        return tenant

    @submitted
    def identity_of(self, connection: Connection, name: str) -> str:
        """Return the identity of the tenant of that name; for a deleted one, the last identity."""
        return _IDENTITY.scalar(connection, name=name) or _LAST_IDENTITY.scalar(connection, name=name) or name

    @submitted
    def keys(self, connection: Connection, tenant: str) -> list[TenantKey]:
        """Return a tenant's keys, oldest first; ended keys are listed for 30 more days. Fails with NotFound
        UNKNOWN_TENANT."""
        _check_known(connection, tenant)
        since = self._clock.wall() - ENDED_KEYS_S
        return [*map(_key_of, _KEYS.rows(connection, name=tenant, now=since))]

    @submitted
    def add_key(self, connection: Connection, key: HashedKey) -> TenantKey:
        """Store a key. Fails with NotFound UNKNOWN_TENANT, ResourceExhausted TOO_MANY_KEYS."""
        return _add_key(connection, key, self._clock.wall())

    @submitted
    def tenant_of_key(self, connection: Connection, key_id: str) -> str:
        """Return the tenant of a key. Fails with NotFound UNKNOWN_KEY."""
        return _find_key(connection, key_id).tenant

    @submitted
    def replace_key(self, connection: Connection, key_id: str, new: HashedKey, ends_at: float) -> TenantKey:
        """Store a new key and let the old one end at `ends_at`, or at its earlier end; return the old one. Fails with
        NotFound UNKNOWN_KEY, FailedPrecondition KEY_ENDED, ResourceExhausted TOO_MANY_KEYS."""
        note_change(connection)
        old, now = _find_key(connection, key_id), self._clock.wall()
        if not old.is_good(now):
            raise FailedPrecondition("KEY_ENDED", f"key_id: {key_id} has ended; make a new key instead")
        ends_at = ends_at if old.expires_at is None else min(ends_at, old.expires_at)
        (ended,) = _END_KEY.rows(connection, id=key_id, expires_at=ends_at)
        _add_key(connection, new, now)
        return _key_of(ended)

    @submitted
    def revoke_key(self, connection: Connection, key_id: str) -> TenantKey:
        """End a key now; a revoked key stays unchanged. Fails with NotFound UNKNOWN_KEY."""
        note_change(connection)
        found = _REVOKE.first(connection, id=key_id, now=self._clock.wall())
        if found is None:
            raise _unknown_key(key_id)
        return _key_of(found)

    @submitted
    def add_usage(self, connection: Connection, rows: Sequence[UsageRow]) -> None:
        """Add to the usage counters."""
        for row in rows:
            more = {"of_tenant": row.tenant, "of_hour_at": row.hour_at, "of_counter": row.counter, "more": row.amount}
            if not _MORE_USAGE.change(connection, **more) and not _ADD_USAGE.first(connection, **vars(row)):
                _MORE_USAGE.change(connection, **more)

    @submitted
    def usage(self, connection: Connection, tenant: str, from_at: float, to_at: float) -> list[UsageRow]:
        """Return a tenant's usage in the hours that begin in [from_at, to_at), by hour and counter."""
        return [UsageRow(*row) for row in _USAGE.rows(connection, name=tenant, from_at=from_at, to_at=to_at)]

    @submitted
    def forget(self, connection: Connection, usage_before: float) -> int:
        """Delete usage of hours that began before `usage_before`, and keys that ended 30 days ago; return the number of
        rows."""
        keys = _FORGET_KEYS.change(connection, before=self._clock.wall() - ENDED_KEYS_S)
        return keys + _FORGET_USAGE.change(connection, before=usage_before)


def delete_tenant(connection: Connection, name: str, now: float) -> bool:
    """Delete a tenant with its keys, and note its departure; False if there is none."""
    gone = _DELETE.first(connection, name=name)
    if gone is None:
        return False
    _ADD_DEPARTURE.change(connection, **_row_of(_tenant_of(gone)), deleted_at=now)
    return True


def renew_tenant(connection: Connection, name: str, now: float) -> bool:
    """Give a tenant a new identity, and note the departure of the old one; False if there is none."""
    found = _TENANT.first(connection, name=name)
    if found is None:
        return False
    _ADD_DEPARTURE.change(connection, **_row_of(_tenant_of(found)), deleted_at=now)
    _RENEW.change(connection, name=name, tenant_id=next_identity(name, _DEPARTURE_COUNT.scalar(connection, name=name)))
    return True


def _revision(connection: Connection) -> int:
    return int(_REVISION.scalar(connection))


def note_change(connection: Connection) -> None:
    """Give the book another revision."""
    _CHANGE.change(connection)


def _read_tenants(connection: Connection) -> list[Tenant]:
    return [*map(_tenant_of, _TENANTS.rows(connection))]


def _insert(connection: Connection, tenant: Tenant) -> None:
    if not _ADD_TENANT.first(connection, **_row_of(tenant)):
        raise FailedPrecondition("TENANT_EXISTS", f"name: there is a tenant {tenant.name} already")


def _add_key(connection: Connection, key: HashedKey, now: float) -> TenantKey:
    # Locks the book's row: concurrent calls that add keys of one tenant count each other's.
    note_change(connection)
    tenant = key.key.tenant
    _check_known(connection, tenant)
    if _KEY_COUNT.scalar(connection, name=tenant, now=now) >= MAX_KEYS:
        raise ResourceExhausted("TOO_MANY_KEYS", f"tenant {tenant} has {MAX_KEYS} good keys, as many as it may have")
    _ADD_KEY.change(connection, **vars(key.key), digest=key.digest)
    return key.key


def _find_key(connection: Connection, key_id: str) -> TenantKey:
    found = _KEY.first(connection, id=key_id)
    if found is None:
        raise _unknown_key(key_id)
    return _key_of(found)


def _check_known(connection: Connection, tenant: str) -> None:
    if _KNOWN.first(connection, name=tenant) is None:
        raise unknown_tenant(tenant)


def unknown_tenant(tenant: str) -> NotFound:
    """Return the error of a name without a tenant."""
    return NotFound("UNKNOWN_TENANT", f"tenant: there is no tenant {tenant}")


def _unknown_key(key_id: str) -> NotFound:
    return NotFound("UNKNOWN_KEY", f"key_id: there is no key {key_id}")


def _document(quota: TenantQuota) -> str:
    return json.dumps(to_json(quota), separators=(",", ":"))


def _tenant_of(row: Any) -> Tenant:
    quota = from_json(TenantQuota, json.loads(row.quota), f"quota of {row.tenant}")
    return Tenant(row.tenant, quota, row.created_at, row.revision, row.tenant_id)


def _row_of(tenant: Tenant) -> dict[str, Any]:
    document = {"quota": _document(tenant.quota), "created_at": tenant.created_at, "revision": tenant.revision}
    return {"tenant": tenant.name, "tenant_id": tenant.identity, **document}


def _key_of(row: Any) -> TenantKey:
    return TenantKey(row.key_id, row.tenant, row.created_at, row.expires_at, row.revoked_at)
