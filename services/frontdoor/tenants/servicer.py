"""Serve pentimento.api.tenants.v1 with the transport-neutral administration."""

from typing import Any

import grpc.aio

from pentimento.api.tenants.v1 import tenant_service_pb2 as pb
from pentimento.api.tenants.v1.tenant_service_pb2_grpc import TenantServiceServicer
from pentimento.domain.tenants import TenantQuota, UsagePeriodLength
from pentimento.wire.codec import decode, member_of, nested
from services.frontdoor.tenants.administration import TenantAdministration

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
