"""Keep the ledger of tenants: their quotas, their keys by digest, and their usage by the hour."""

import json
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from sqlalchemy import Connection, Engine, Row, and_, delete, func, insert, or_, select, update

from pentimento.domain.clock import Clock
from pentimento.domain.errors import FailedPrecondition, NotFound, ResourceExhausted
from pentimento.domain.tenants import HashedKey, Tenant, TenantBook, TenantKey, TenantQuota, UsageRow, next_identity
from pentimento.files.json_values import from_json, to_json
from pentimento.stores.ledger import tenant_tables as tables
from pentimento.stores.ledger.database import insert_unless_present
from pentimento.stores.ledger.migrations import migrate
from pentimento.stores.ledger.writer import GroupCommitWriter, submitted

_book = tables.book
_tenants = tables.tenants
_keys = tables.keys_of_tenants
_usage = tables.usage
_departures = tables.departures

MAX_TENANTS = 10_000
# Valid keys of one tenant: each costs memory in every process that accepts it.
MAX_KEYS = 20
# Ended keys are listed for this long.
ENDED_KEYS_S = 30 * 86_400.0


def migrate_tenants(engine: Engine) -> None:
    """Bring the tables of tenants to the newest version. Raises as `migrate`."""
    migrate(engine, "tenants", tables.MIGRATIONS)


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
        found = connection.execute(select(_keys).where(_is_good(self._clock.wall())).order_by(_keys.c.key_id))
        keys = tuple(HashedKey(_key_of(row), row.digest) for row in found)
        return TenantBook(revision, tuple(_read_tenants(connection)), keys)

    def tenants(self) -> "Future[list[Tenant]]":
        """Return all tenants by name."""
        return self._submit(_read_tenants)

    @submitted
    def create(self, connection: Connection, name: str, quota: TenantQuota) -> Tenant:
        """Make a tenant. Fails with FailedPrecondition TENANT_EXISTS, ResourceExhausted TOO_MANY_TENANTS."""
        _note_change(connection)
        if connection.execute(select(func.count()).select_from(_tenants)).scalar_one() >= MAX_TENANTS:
            raise ResourceExhausted("TOO_MANY_TENANTS", f"there are {MAX_TENANTS} tenants, as many as there may be")
        earlier = select(func.count()).select_from(_departures).where(_departures.c.tenant == name)
        identity = next_identity(name, connection.execute(earlier).scalar_one())
        tenant = Tenant(name, quota, self._clock.wall(), tenant_id=identity)
        _insert(connection, tenant)
        return tenant

    @submitted
    def update(self, connection: Connection, name: str, quota: TenantQuota, revision: int) -> Tenant:
        """Replace a tenant's quota. Fails with NotFound UNKNOWN_TENANT, FailedPrecondition TENANT_CHANGED if it has
        another revision by now."""
        _note_change(connection)
        is_it = and_(_tenants.c.tenant == name, _tenants.c.revision == revision)
        values = {"quota": _document(quota), "revision": revision + 1}
        changed = connection.execute(update(_tenants).where(is_it).values(values).returning(_tenants)).one_or_none()
        if changed is None:
            _check_known(connection, name)
            raise FailedPrecondition("TENANT_CHANGED", f"revision: {revision} is not the newest of tenant {name}")
        return _tenant_of(changed)

    @submitted
    def delete(self, connection: Connection, name: str) -> None:
        """Delete a tenant and its keys; its data are kept until `departed` names it. Fails with NotFound
        UNKNOWN_TENANT."""
        _note_change(connection)
        gone = connection.execute(delete(_tenants).where(_tenants.c.tenant == name).returning(_tenants)).one_or_none()
        if gone is None:
            raise _unknown(name)
        connection.execute(insert(_departures), {**_row_of(_tenant_of(gone)), "deleted_at": self._clock.wall()})

    @submitted
    def restore(self, connection: Connection, name: str, deleted_after: float) -> Tenant:
        """Bring back the last tenant of that name, without keys, if it was deleted after that time. Fails with NotFound
        UNKNOWN_TENANT, FailedPrecondition TENANT_EXISTS."""
        _note_change(connection)
        is_it = and_(_departures.c.tenant == name, _departures.c.deleted_at > deleted_after)
        newest = select(_departures).where(is_it).order_by(_departures.c.deleted_at.desc()).limit(1)
        found = connection.execute(newest).one_or_none()
        if found is None:
            raise NotFound("UNKNOWN_TENANT", f"name: no tenant {name} was deleted whose data are still kept")
        connection.execute(delete(_departures).where(_departures.c.tenant_id == found.tenant_id))
        tenant = _tenant_of(found)
        _insert(connection, tenant)
        return tenant

    def departed(self, deleted_before: float) -> "Future[list[str]]":
        """Return the identities of tenants deleted before that time that may still have data."""
        is_due = and_(_departures.c.deleted_at <= deleted_before, _departures.c.purged_at.is_(None))
        statement = select(_departures.c.tenant_id).where(is_due).order_by(_departures.c.deleted_at)
        return self._submit(lambda connection: list(connection.scalars(statement)))

    def note_purged(self, tenant_id: str) -> "Future[None]":
        """Record that a deleted tenant has no data left except its usage."""
        values = {"purged_at": self._clock.wall(), "quota": _document(TenantQuota())}
        statement = update(_departures).where(_departures.c.tenant_id == tenant_id).values(values)
        return self._submit(lambda connection: (connection.execute(statement), None)[1])

    @submitted
    def identity_of(self, connection: Connection, name: str) -> str:
        """Return the identity of the tenant of that name; for a deleted one, the last identity."""
        live = select(_tenants.c.tenant_id).where(_tenants.c.tenant == name)
        deleted = select(_departures.c.tenant_id).where(_departures.c.tenant == name)
        last = deleted.order_by(_departures.c.deleted_at.desc()).limit(1)
        return connection.scalars(live).first() or connection.scalars(last).first() or name

    @submitted
    def keys(self, connection: Connection, tenant: str) -> list[TenantKey]:
        """Return a tenant's keys, oldest first; ended keys are listed for 30 more days. Fails with NotFound
        UNKNOWN_TENANT."""
        _check_known(connection, tenant)
        since = self._clock.wall() - ENDED_KEYS_S
        statement = select(_keys).where(_keys.c.tenant == tenant, _is_good(since)).order_by(_keys.c.created_at)
        return [_key_of(row) for row in connection.execute(statement)]

    def add_key(self, key: HashedKey) -> "Future[TenantKey]":
        """Store a key. Fails with NotFound UNKNOWN_TENANT, ResourceExhausted TOO_MANY_KEYS."""
        now = self._clock.wall()
        return self._submit(lambda connection: _add_key(connection, key, now))

    def tenant_of_key(self, key_id: str) -> "Future[str]":
        """Return the tenant of a key. Fails with NotFound UNKNOWN_KEY."""
        return self._submit(lambda connection: _find_key(connection, key_id).tenant)

    @submitted
    def replace_key(self, connection: Connection, key_id: str, new: HashedKey, ends_at: float) -> TenantKey:
        """Store a new key and let the old one end at `ends_at`, or at its earlier end; return the old one. Fails with
        NotFound UNKNOWN_KEY, FailedPrecondition KEY_ENDED, ResourceExhausted TOO_MANY_KEYS."""
        _note_change(connection)
        old, now = _find_key(connection, key_id), self._clock.wall()
        if not old.is_good(now):
            raise FailedPrecondition("KEY_ENDED", f"key_id: {key_id} has ended; make a new key instead")
        ends_at = ends_at if old.expires_at is None else min(ends_at, old.expires_at)
        statement = update(_keys).where(_keys.c.key_id == key_id).values(expires_at=ends_at).returning(_keys)
        ended = connection.execute(statement).one()
        _add_key(connection, new, now)
        return _key_of(ended)

    @submitted
    def revoke_key(self, connection: Connection, key_id: str) -> TenantKey:
        """End a key now; a revoked key stays unchanged. Fails with NotFound UNKNOWN_KEY."""
        _note_change(connection)
        once = func.coalesce(_keys.c.revoked_at, self._clock.wall())
        statement = update(_keys).where(_keys.c.key_id == key_id).values(revoked_at=once).returning(_keys)
        found = connection.execute(statement).one_or_none()
        if found is None:
            raise _unknown_key(key_id)
        return _key_of(found)

    @submitted
    def add_usage(self, connection: Connection, rows: Sequence[UsageRow]) -> None:
        """Add to the usage counters."""
        for row in rows:
            is_it = and_(
                _usage.c.tenant == row.tenant, _usage.c.hour_at == row.hour_at, _usage.c.counter == row.counter
            )
            more = update(_usage).where(is_it).values(amount=_usage.c.amount + row.amount)
            if not connection.execute(more).rowcount and not insert_unless_present(connection, _usage, vars(row)):
                connection.execute(more)

    def usage(self, tenant: str, from_at: float, to_at: float) -> "Future[list[UsageRow]]":
        """Return a tenant's usage in the hours that begin in [from_at, to_at), by hour and counter."""
        of_it = and_(_usage.c.tenant == tenant, _usage.c.hour_at >= from_at, _usage.c.hour_at < to_at)
        statement = select(_usage).where(of_it).order_by(_usage.c.hour_at, _usage.c.counter)
        return self._submit(lambda connection: [UsageRow(*row) for row in connection.execute(statement)])

    def forget(self, usage_before: float) -> "Future[int]":
        """Delete usage of hours that began before `usage_before`, and keys that ended 30 days ago; return the number of
        rows."""
        ended_before = self._clock.wall() - ENDED_KEYS_S
        is_over = or_(_keys.c.revoked_at < ended_before, _keys.c.expires_at < ended_before)
        statements = (delete(_usage).where(_usage.c.hour_at < usage_before), delete(_keys).where(is_over))
        return self._submit(lambda connection: sum(connection.execute(each).rowcount for each in statements))


def _revision(connection: Connection) -> int:
    return int(connection.execute(select(_book.c.revision)).scalar_one())


def _note_change(connection: Connection) -> None:
    connection.execute(update(_book).values(revision=_book.c.revision + 1))


def _read_tenants(connection: Connection) -> list[Tenant]:
    return [_tenant_of(row) for row in connection.execute(select(_tenants).order_by(_tenants.c.tenant))]


def _insert(connection: Connection, tenant: Tenant) -> None:
    if not insert_unless_present(connection, _tenants, _row_of(tenant)):
        raise FailedPrecondition("TENANT_EXISTS", f"name: there is a tenant {tenant.name} already")


def _add_key(connection: Connection, key: HashedKey, now: float) -> TenantKey:
    # Locks the book's row: concurrent calls that add keys of one tenant count each other's.
    _note_change(connection)
    tenant = key.key.tenant
    _check_known(connection, tenant)
    good = select(func.count()).select_from(_keys).where(_keys.c.tenant == tenant, _is_good(now))
    if connection.execute(good).scalar_one() >= MAX_KEYS:
        raise ResourceExhausted("TOO_MANY_KEYS", f"tenant {tenant} has {MAX_KEYS} good keys, as many as it may have")
    connection.execute(insert(_keys), {**vars(key.key), "digest": key.digest})
    return key.key


def _find_key(connection: Connection, key_id: str) -> TenantKey:
    found = connection.execute(select(_keys).where(_keys.c.key_id == key_id)).one_or_none()
    if found is None:
        raise _unknown_key(key_id)
    return _key_of(found)


def _check_known(connection: Connection, tenant: str) -> None:
    if connection.execute(select(_tenants.c.tenant).where(_tenants.c.tenant == tenant)).first() is None:
        raise _unknown(tenant)


def _is_good(now: float) -> Any:
    still = or_(_keys.c.expires_at.is_(None), _keys.c.expires_at > now)
    return and_(still, or_(_keys.c.revoked_at.is_(None), _keys.c.revoked_at > now))


def _unknown(tenant: str) -> NotFound:
    return NotFound("UNKNOWN_TENANT", f"tenant: there is no tenant {tenant}")


def _unknown_key(key_id: str) -> NotFound:
    return NotFound("UNKNOWN_KEY", f"key_id: there is no key {key_id}")


def _document(quota: TenantQuota) -> str:
    return json.dumps(to_json(quota), separators=(",", ":"))


def _tenant_of(row: Row[Any]) -> Tenant:
    quota = from_json(TenantQuota, json.loads(row.quota), f"quota of {row.tenant}")
    return Tenant(row.tenant, quota, row.created_at, row.revision, row.tenant_id)


def _row_of(tenant: Tenant) -> dict[str, Any]:
    document = {"quota": _document(tenant.quota), "created_at": tenant.created_at, "revision": tenant.revision}
    return {"tenant": tenant.name, "tenant_id": tenant.identity, **document}


def _key_of(row: Row[Any]) -> TenantKey:
    return TenantKey(row.key_id, row.tenant, row.created_at, row.expires_at, row.revoked_at)
