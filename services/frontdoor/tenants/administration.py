"""Administer tenants for operators: changes go to the ledger first, then apply immediately to new calls."""

import asyncio
import secrets
from collections.abc import Sequence

from pentimento.domain.clock import Clock
from pentimento.domain.erasure import Erasure
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.tenants import (
    DAY_S,
    USAGE_KEPT_S,
    HashedKey,
    Tenant,
    TenantKey,
    TenantQuota,
    UsagePeriod,
    check_name,
    check_new_name,
)
from pentimento.rpc.tokens import hash_token, new_token
from pentimento.stores.ledger.tenant_ledger import TenantLedger
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.erasures import Erasures
from services.frontdoor.tenants.usage import UsageMeter

KEY_PREFIX = "pentimento"
MAX_LIFE_S = 10 * 366 * 86_400
# The whole period that is stored, from the start of its first day to the end of the last.
MAX_USAGE_S = USAGE_KEPT_S + 2 * DAY_S


class TenantAdministration:
    """Handle administrative calls in domain values and raise domain errors, such as StoreUnavailable. Changes of
    tenants and keys apply in this process once a call returns."""

    def __init__(
        self,
        ledger: TenantLedger,
        directory: TenantDirectory,
        usage: UsageMeter,
        erasures: Erasures,
        clock: Clock,
        grace_s: float,
    ) -> None:
        """Keep a deleted tenant's data for `grace_s` seconds."""
        self._erasures = erasures
        self._ledger = ledger
        self._directory = directory
        self._usage = usage
        self._clock = clock
        self._grace_s = grace_s

    async def tenants(self) -> Sequence[Tenant]:
        """Return all tenants by name."""
        return await asyncio.wrap_future(self._ledger.tenants())

    async def create(self, name: str, quota: TenantQuota) -> Tenant:
        """Create a tenant; changes state. Raises InvalidArgument, FailedPrecondition TENANT_EXISTS,
        ResourceExhausted."""
        check_new_name(name)
        tenant = await asyncio.wrap_future(self._ledger.create(name, quota))
        await self._directory.refresh()
        return tenant

    async def update(self, name: str, quota: TenantQuota, revision: int) -> Tenant:
        """Replace a tenant's quota; changes state. Raises NotFound, FailedPrecondition TENANT_CHANGED."""
        check_name(name)
        tenant = await asyncio.wrap_future(self._ledger.update(name, quota, revision))
        await self._directory.refresh()
        return tenant

    async def delete(self, name: str) -> None:
        """Delete a tenant and its keys; changes state. Raises NotFound."""
        check_name(name)
        await asyncio.wrap_future(self._ledger.delete(name))
        await self._directory.refresh()

    async def restore(self, name: str) -> Tenant:
        """Restore a deleted tenant, without keys; changes state. Raises NotFound after the grace period,
        FailedPrecondition TENANT_EXISTS."""
        check_name(name)
        deleted_after = self._clock.wall() - self._grace_s
        tenant = await asyncio.wrap_future(self._ledger.restore(name, deleted_after))
        await self._directory.refresh()
        return tenant

    async def erase(self, name: str, *, keeps_tenant: bool) -> Erasure:
        """Begin to delete all data of a tenant, and the tenant unless `keeps_tenant`; changes state. Raises
        NotFound."""
        check_name(name)
        asked = await self._erasures.erase(name, keeps_tenant=keeps_tenant)
        await self._directory.refresh()
        return asked

    async def erasures(self, name: str) -> Sequence[Erasure]:
        """Return the erasures of deleted tenants of that name, of all with "", in the order of deletion."""
        if name:
            check_name(name)
        return await self._erasures.erasures(name)

    async def keys(self, tenant: str) -> Sequence[TenantKey]:
        """Return a tenant's keys, oldest first. Raises NotFound."""
        check_name(tenant, "tenant")
        return await asyncio.wrap_future(self._ledger.keys(tenant))

    async def create_key(self, tenant: str, life_s: int | None) -> tuple[TenantKey, str]:
        """Create a key and return it with its secret, which is not stored; changes state. Raises NotFound,
        InvalidArgument, ResourceExhausted TOO_MANY_KEYS."""
        check_name(tenant, "tenant")
        hashed, secret = self._new_key(tenant, life_s)
        key = await asyncio.wrap_future(self._ledger.add_key(hashed))
        await self._directory.refresh()
        return key, secret

    async def rotate_key(self, key_id: str, grace_s: int, life_s: int | None) -> tuple[TenantKey, str, TenantKey]:
        """Create a new key of the same tenant; return it, its secret, and the old key, which ends after `grace_s`.
        Changes state. Raises as `create_key`, and FailedPrecondition KEY_ENDED."""
        check_name(key_id, "key_id")
        _check_seconds("grace_s", grace_s, 0)
        tenant = await asyncio.wrap_future(self._ledger.tenant_of_key(key_id))
        new, secret = self._new_key(tenant, life_s)
        ends_at = self._clock.wall() + grace_s
        old = await asyncio.wrap_future(self._ledger.replace_key(key_id, new, ends_at))
        await self._directory.refresh()
        return new.key, secret, old

    async def revoke_key(self, key_id: str) -> TenantKey:
        """End a key now; changes state. Raises NotFound."""
        check_name(key_id, "key_id")
        key = await asyncio.wrap_future(self._ledger.revoke_key(key_id))
        await self._directory.refresh()
        return key

    async def usage(self, tenant: str, from_at: float, to_at: float, length_s: int) -> Sequence[UsagePeriod]:
        """Return a tenant's usage in periods of that length. Raises InvalidArgument."""
        check_name(tenant, "tenant")
        if not 0 <= from_at < to_at <= from_at + MAX_USAGE_S:
            limit = f"must be after from_ms, by at most {MAX_USAGE_S} s"
            raise InvalidArgument.of("to_ms", limit)
        identity = await asyncio.wrap_future(self._ledger.identity_of(tenant))
        return await self._usage.periods(identity, from_at, to_at, length_s)

    def _new_key(self, tenant: str, life_s: int | None) -> tuple[HashedKey, str]:
        if life_s is not None:
            _check_seconds("expires_in_s", life_s, 1)
        now, key_id = self._clock.wall(), secrets.token_hex(8)
        secret = f"{KEY_PREFIX}_{key_id}_{new_token()}"
        expires_at = now + life_s if life_s is not None else None
        return HashedKey(TenantKey(key_id, tenant, now, expires_at), hash_token(secret)), secret


def _check_seconds(field: str, value: int, least: int) -> None:
    if not least <= value <= MAX_LIFE_S:
        raise InvalidArgument.of(field, f"must be between {least} and {MAX_LIFE_S}, got {value}")
