"""Administer tenants for operators: changes go to the ledger first, then apply immediately to new calls."""

import asyncio
import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc.aio

from pentimento.api.tenants.v1 import tenant_service_pb2 as pb
from pentimento.api.tenants.v1.tenant_service_pb2_grpc import TenantServiceServicer
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
    UsagePeriodLength,
    check_name,
    check_new_name,
)
from pentimento.rpc.tokens import hash_token, new_token
from pentimento.stores.ledger.tenant_ledger import TenantLedger
from pentimento.wire.codec import decode, member_of, nested
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.erasures import Erasures
from services.frontdoor.tenants.usage import UsageMeter

T = TypeVar("T")

KEY_PREFIX = "pentimento"
MAX_LIFE_S = 10 * 366 * 86_400
# The whole period that is stored, from the start of its first day to the end of the last.
MAX_USAGE_S = USAGE_KEPT_S + 2 * DAY_S


@dataclass(frozen=True)
class TenantAdministration:
    """Handle administrative calls in domain values and raise domain errors, such as StoreUnavailable. Changes of
    tenants and keys apply in this process once a call returns. A deleted tenant's data stays for `grace_s` seconds."""

    ledger: TenantLedger
    directory: TenantDirectory
    meter: UsageMeter
    erasing: Erasures
    clock: Clock
    grace_s: float

    async def tenants(self) -> Sequence[Tenant]:
        return await asyncio.wrap_future(self.ledger.tenants())

    async def create(self, name: str, quota: TenantQuota) -> Tenant:
        """Create a tenant; changes state. Raises InvalidArgument, FailedPrecondition TENANT_EXISTS,
        ResourceExhausted."""
        check_new_name(name)
        return await self._applied(self.ledger.create(name, quota))

    async def update(self, name: str, quota: TenantQuota, revision: int) -> Tenant:
        """Replace a tenant's quota; changes state. Raises NotFound, FailedPrecondition TENANT_CHANGED."""
        check_name(name)
        return await self._applied(self.ledger.update(name, quota, revision))

    async def delete(self, name: str) -> None:
        """Delete a tenant and its keys; changes state. Raises NotFound."""
        check_name(name)
        await self._applied(self.ledger.delete(name))

    async def restore(self, name: str) -> Tenant:
        """Restore a deleted tenant, without keys; changes state. Raises NotFound after the grace period,
        FailedPrecondition TENANT_EXISTS."""
        check_name(name)
        return await self._applied(self.ledger.restore(name, self.clock.wall() - self.grace_s))

    async def erase(self, name: str, *, keeps_tenant: bool) -> Erasure:
        """Begin to delete all data of a tenant, and the tenant unless `keeps_tenant`; changes state. Raises
        NotFound."""
        check_name(name)
        asked = await self.erasing.erase(name, keeps_tenant=keeps_tenant)
        await self.directory.refresh()
        return asked

    async def erasures(self, name: str) -> Sequence[Erasure]:
        """Return the erasures of deleted tenants of that name, of all with "", in the order of deletion."""
        if name:
            check_name(name)
        return await self.erasing.erasures(name)

    async def keys(self, tenant: str) -> Sequence[TenantKey]:
        """Return a tenant's keys, oldest first. Raises NotFound."""
        check_name(tenant, "tenant")
        return await asyncio.wrap_future(self.ledger.keys(tenant))

    async def create_key(self, tenant: str, life_s: int | None) -> tuple[TenantKey, str]:
        """Create a key and return it with its secret, which is not stored; changes state. Raises NotFound,
        InvalidArgument, ResourceExhausted TOO_MANY_KEYS."""
        check_name(tenant, "tenant")
        hashed, secret = self._new_key(tenant, life_s)
        return await self._applied(self.ledger.add_key(hashed)), secret

    async def rotate_key(self, key_id: str, grace_s: int, life_s: int | None) -> tuple[TenantKey, str, TenantKey]:
        """Create a new key of the same tenant; return it, its secret, and the old key, which ends after `grace_s`.
        Changes state. Raises as `create_key`, and FailedPrecondition KEY_ENDED."""
        check_name(key_id, "key_id")
        _check_seconds("grace_s", grace_s, 0)
        tenant = await asyncio.wrap_future(self.ledger.tenant_of_key(key_id))
        new, secret = self._new_key(tenant, life_s)
        old = await self._applied(self.ledger.replace_key(key_id, new, self.clock.wall() + grace_s))
        return new.key, secret, old

    async def revoke_key(self, key_id: str) -> TenantKey:
        """End a key now; changes state. Raises NotFound."""
        check_name(key_id, "key_id")
        return await self._applied(self.ledger.revoke_key(key_id))

    async def usage(self, tenant: str, from_at: float, to_at: float, length_s: int) -> Sequence[UsagePeriod]:
        """Return a tenant's usage in periods of that length. Raises InvalidArgument."""
        check_name(tenant, "tenant")
        if not 0 <= from_at < to_at <= from_at + MAX_USAGE_S:
            limit = f"must be after from_ms, by at most {MAX_USAGE_S} s"
            raise InvalidArgument.of("to_ms", limit)
        identity = await asyncio.wrap_future(self.ledger.identity_of(tenant))
        return await self.meter.periods(identity, from_at, to_at, length_s)

    async def _applied(self, change: "Future[T]") -> T:
        """Return the outcome of a change once it applies in this process."""
        changed = await asyncio.wrap_future(change)
        await self.directory.refresh()
        return changed

    def _new_key(self, tenant: str, life_s: int | None) -> tuple[HashedKey, str]:
        if life_s is not None:
            _check_seconds("expires_in_s", life_s, 1)
        now, key_id = self.clock.wall(), secrets.token_hex(8)
        secret = f"{KEY_PREFIX}_{key_id}_{new_token()}"
        expires_at = now + life_s if life_s is not None else None
        return HashedKey(TenantKey(key_id, tenant, now, expires_at), hash_token(secret)), secret


def _check_seconds(field: str, value: int, least: int) -> None:
    if not least <= value <= MAX_LIFE_S:
        raise InvalidArgument.of(field, f"must be between {least} and {MAX_LIFE_S}, got {value}")


TENANT_SERVICE = pb.DESCRIPTOR.services_by_name["TenantService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


class TenantServicer(TenantServiceServicer):
    """Convert tenant calls to and from domain values."""

    def __init__(self, administration: TenantAdministration) -> None:
        self._administration = administration

    async def CreateTenant(self, request: pb.CreateTenantRequest, context: Context) -> pb.CreateTenantResponse:
        tenant = await self._administration.create(request.name, decode(request.quota, TenantQuota, "quota"))
        return pb.CreateTenantResponse(tenant=nested(tenant, pb.Tenant))

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Context) -> pb.ListTenantsResponse:
        tenants = await self._administration.tenants()
        return pb.ListTenantsResponse(tenants=[nested(tenant, pb.Tenant) for tenant in tenants])

    async def UpdateTenant(self, request: pb.UpdateTenantRequest, context: Context) -> pb.UpdateTenantResponse:
        quota = decode(request.quota, TenantQuota, "quota")
        tenant = await self._administration.update(request.name, quota, request.revision)
        return pb.UpdateTenantResponse(tenant=nested(tenant, pb.Tenant))

    async def DeleteTenant(self, request: pb.DeleteTenantRequest, context: Context) -> pb.DeleteTenantResponse:
        await self._administration.delete(request.name)
        return pb.DeleteTenantResponse()

    async def RestoreTenant(self, request: pb.RestoreTenantRequest, context: Context) -> pb.RestoreTenantResponse:
        tenant = await self._administration.restore(request.name)
        return pb.RestoreTenantResponse(tenant=nested(tenant, pb.Tenant))

    async def EraseTenant(self, request: pb.EraseTenantRequest, context: Context) -> pb.EraseTenantResponse:
        erasure = await self._administration.erase(request.name, keeps_tenant=request.keep_tenant)
        return pb.EraseTenantResponse(erasure=nested(erasure, pb.Erasure))

    async def ListErasures(self, request: pb.ListErasuresRequest, context: Context) -> pb.ListErasuresResponse:
        erasures = await self._administration.erasures(request.name)
        return pb.ListErasuresResponse(erasures=[nested(one, pb.Erasure) for one in erasures])

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Context) -> pb.CreateKeyResponse:
        life_s = request.expires_in_s if request.HasField("expires_in_s") else None
        key, secret = await self._administration.create_key(request.tenant, life_s)
        return pb.CreateKeyResponse(key=nested(key, pb.TenantKey), secret=secret)

    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysResponse:
        keys = await self._administration.keys(request.tenant)
        return pb.ListKeysResponse(keys=[nested(key, pb.TenantKey) for key in keys])

    async def RotateKey(self, request: pb.RotateKeyRequest, context: Context) -> pb.RotateKeyResponse:
        life_s = request.expires_in_s if request.HasField("expires_in_s") else None
        key, secret, old = await self._administration.rotate_key(request.key_id, request.grace_s, life_s)
        return pb.RotateKeyResponse(key=nested(key, pb.TenantKey), secret=secret, old_key=nested(old, pb.TenantKey))

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Context) -> pb.RevokeKeyResponse:
        key = await self._administration.revoke_key(request.key_id)
        return pb.RevokeKeyResponse(key=nested(key, pb.TenantKey))

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:
        length = member_of(request.period, UsagePeriodLength, pb.UsagePeriodLength, "period")
        bounds = (request.from_ms / 1000, request.to_ms / 1000)
        periods = await self._administration.usage(request.tenant, *bounds, length.value)
        return pb.GetUsageResponse(periods=[nested(period, pb.UsagePeriod) for period in periods])
