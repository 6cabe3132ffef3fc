"""Serve pentimento.api.tenants.v1: changes go to the ledger first, then apply immediately to new calls."""

import asyncio
import secrets
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc.aio

from pentimento.api.tenants.v1 import tenant_service_pb2 as pb
from pentimento.api.tenants.v1.tenant_service_pb2_grpc import TenantServiceServicer
from pentimento.domain.clock import Clock
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.tenants import (
    DAY_S,
    USAGE_KEPT_S,
    HashedKey,
    TenantKey,
    TenantQuota,
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


TENANT_SERVICE = pb.DESCRIPTOR.services_by_name["TenantService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, eq=False)
class TenantServicer(TenantServiceServicer):
    """Administer tenants. Changes apply in this process once a call returns. A deleted tenant's data stays for
    `grace_s` seconds."""

    ledger: TenantLedger
    directory: TenantDirectory
    meter: UsageMeter
    erasing: Erasures
    clock: Clock
    grace_s: float

    async def CreateTenant(self, request: pb.CreateTenantRequest, context: Context) -> pb.CreateTenantResponse:
        check_new_name(request.name)
        quota = decode(request.quota, TenantQuota, "quota")
        made = await self._applied(self.ledger.create(request.name, quota))
        return pb.CreateTenantResponse(tenant=nested(made, pb.Tenant))

    async def ListTenants(self, request: pb.ListTenantsRequest, context: Context) -> pb.ListTenantsResponse:
        tenants = await asyncio.wrap_future(self.ledger.tenants())
        return pb.ListTenantsResponse(tenants=[nested(tenant, pb.Tenant) for tenant in tenants])

    async def UpdateTenant(self, request: pb.UpdateTenantRequest, context: Context) -> pb.UpdateTenantResponse:
        check_name(request.name)
        quota = decode(request.quota, TenantQuota, "quota")
        changed = await self._applied(self.ledger.update(request.name, quota, request.revision))
        return pb.UpdateTenantResponse(tenant=nested(changed, pb.Tenant))

    async def DeleteTenant(self, request: pb.DeleteTenantRequest, context: Context) -> pb.DeleteTenantResponse:
        check_name(request.name)
        await self._applied(self.ledger.delete(request.name))
        return pb.DeleteTenantResponse()

    async def RestoreTenant(self, request: pb.RestoreTenantRequest, context: Context) -> pb.RestoreTenantResponse:
        check_name(request.name)
        restored = await self._applied(self.ledger.restore(request.name, self.clock.wall() - self.grace_s))
        return pb.RestoreTenantResponse(tenant=nested(restored, pb.Tenant))

    async def EraseTenant(self, request: pb.EraseTenantRequest, context: Context) -> pb.EraseTenantResponse:
        check_name(request.name)
        erasure = await self.erasing.erase(request.name, keeps_tenant=request.keep_tenant)
        await self.directory.refresh()
        return pb.EraseTenantResponse(erasure=nested(erasure, pb.Erasure))

    async def ListErasures(self, request: pb.ListErasuresRequest, context: Context) -> pb.ListErasuresResponse:
        if request.name:
            check_name(request.name)
        erasures = await self.erasing.erasures(request.name)
        return pb.ListErasuresResponse(erasures=[nested(one, pb.Erasure) for one in erasures])

    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysResponse:
        check_name(request.tenant, "tenant")
        keys = await asyncio.wrap_future(self.ledger.keys(request.tenant))
        return pb.ListKeysResponse(keys=[nested(key, pb.TenantKey) for key in keys])

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Context) -> pb.CreateKeyResponse:
        check_name(request.tenant, "tenant")
        hashed, secret = self._new_key(request.tenant, request)
        key = await self._applied(self.ledger.add_key(hashed))
        return pb.CreateKeyResponse(key=nested(key, pb.TenantKey), secret=secret)

    async def RotateKey(self, request: pb.RotateKeyRequest, context: Context) -> pb.RotateKeyResponse:
        check_name(request.key_id, "key_id")
        _check_seconds("grace_s", request.grace_s, 0)
        tenant = await asyncio.wrap_future(self.ledger.tenant_of_key(request.key_id))
        new, secret = self._new_key(tenant, request)
        old = await self._applied(self.ledger.replace_key(request.key_id, new, self.clock.wall() + request.grace_s))
        told = nested(new.key, pb.TenantKey)
        return pb.RotateKeyResponse(key=told, secret=secret, old_key=nested(old, pb.TenantKey))

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Context) -> pb.RevokeKeyResponse:
        check_name(request.key_id, "key_id")
        key = await self._applied(self.ledger.revoke_key(request.key_id))
        return pb.RevokeKeyResponse(key=nested(key, pb.TenantKey))

    async def GetUsage(self, request: pb.GetUsageRequest, context: Context) -> pb.GetUsageResponse:
        check_name(request.tenant, "tenant")
        length = member_of(request.period, UsagePeriodLength, pb.UsagePeriodLength, "period")
        from_at, to_at = request.from_ms / 1000, request.to_ms / 1000
        if not 0 <= from_at < to_at <= from_at + MAX_USAGE_S:
            raise InvalidArgument.of("to_ms", f"must be after from_ms, by at most {MAX_USAGE_S} s")
        identity = await asyncio.wrap_future(self.ledger.identity_of(request.tenant))
        periods = await self.meter.periods(identity, from_at, to_at, length.value)
        return pb.GetUsageResponse(periods=[nested(period, pb.UsagePeriod) for period in periods])

    async def _applied(self, change: "Future[T]") -> T:
        """Return the outcome of a change once it applies in this process."""
        changed = await asyncio.wrap_future(change)
        await self.directory.refresh()
        return changed

    def _new_key(self, tenant: str, asked: pb.CreateKeyRequest | pb.RotateKeyRequest) -> tuple[HashedKey, str]:
        """Return a key and its secret, which is not stored."""
        now, key_id, expires_at = self.clock.wall(), secrets.token_hex(8), None
        if asked.HasField("expires_in_s"):
            _check_seconds("expires_in_s", asked.expires_in_s, 1)
            expires_at = now + asked.expires_in_s
        secret = f"{KEY_PREFIX}_{key_id}_{new_token()}"
        return HashedKey(TenantKey(key_id, tenant, now, expires_at), hash_token(secret)), secret


def _check_seconds(field: str, value: int, least: int) -> None:
    if not least <= value <= MAX_LIFE_S:
        raise InvalidArgument.of(field, f"must be between {least} and {MAX_LIFE_S}, got {value}")
