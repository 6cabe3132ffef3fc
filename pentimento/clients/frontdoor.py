"""Call the frontdoor's services for operators; `image` is the public API."""

import grpc.aio

from pentimento.api.frontdoor.v1 import frontdoor_service_pb2
from pentimento.api.frontdoor.v1.frontdoor_service_pb2_grpc import FrontdoorServiceStub
from pentimento.api.tenants.v1 import tenant_service_pb2 as pb
from pentimento.api.tenants.v1.tenant_service_pb2_grpc import TenantServiceStub
from pentimento.clients.calls import answer_of
from pentimento.domain.erasure import Erasure
from pentimento.domain.tenants import DAY_S, Tenant, TenantKey, TenantQuota, UsagePeriod, UsagePeriodLength
from pentimento.wire.codec import decode, nested, number_of


class FrontdoorClient:
    """Call a frontdoor's service for operators and the CLI."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = FrontdoorServiceStub(channel)

    async def status(self, timeout_s: float | None = None) -> frontdoor_service_pb2.GetStatusResponse:
        """Return the frontdoor's status message."""
        return await answer_of(self._stub.GetStatus, frontdoor_service_pb2.GetStatusRequest(), timeout_s)

    async def find_key(self, tenant: str, idempotency_key: str, cell: str, timeout_s: float | None = None) -> bool:
        """Return whether a request of the tenant has the key here. From then on the frontdoor accepts no new requests
        of the tenant: they belong to `cell`, which asks."""
        request = frontdoor_service_pb2.FindKeyRequest(tenant=tenant, idempotency_key=idempotency_key, cell=cell)
        return bool((await answer_of(self._stub.FindKey, request, timeout_s)).known)


class TenantsClient:
    """Call a frontdoor's administration; a call has the deadline `timeout_s`."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float = 10.0) -> None:
        self._stub = TenantServiceStub(channel)
        self._timeout_s = timeout_s

    async def create(self, name: str, quota: TenantQuota) -> Tenant:
        """Create a tenant. Raises InvalidArgument, FailedPrecondition TENANT_EXISTS."""
        request = pb.CreateTenantRequest(name=name, quota=nested(quota, pb.TenantQuota))
        answer = await answer_of(self._stub.CreateTenant, request, self._timeout_s)
        return decode(answer.tenant, Tenant)

    async def tenants(self) -> tuple[Tenant, ...]:
        """Return all tenants by name."""
        answer = await answer_of(self._stub.ListTenants, pb.ListTenantsRequest(), self._timeout_s)
        return tuple(decode(tenant, Tenant) for tenant in answer.tenants)

    async def update(self, name: str, quota: TenantQuota, revision: int) -> Tenant:
        """Replace a tenant's quota. Raises NotFound, FailedPrecondition TENANT_CHANGED."""
        request = pb.UpdateTenantRequest(name=name, quota=nested(quota, pb.TenantQuota), revision=revision)
        answer = await answer_of(self._stub.UpdateTenant, request, self._timeout_s)
        return decode(answer.tenant, Tenant)

    async def delete(self, name: str) -> None:
        """Delete a tenant and its keys; its data is deleted after the grace time. Raises NotFound."""
        await answer_of(self._stub.DeleteTenant, pb.DeleteTenantRequest(name=name), self._timeout_s)

    async def restore(self, name: str) -> Tenant:
        """Restore a deleted tenant, without keys. Raises NotFound, FailedPrecondition TENANT_EXISTS."""
        answer = await answer_of(self._stub.RestoreTenant, pb.RestoreTenantRequest(name=name), self._timeout_s)
        return decode(answer.tenant, Tenant)

    async def erase(self, name: str, *, keep_tenant: bool = False) -> Erasure:
        """Begin to delete all data of a tenant, and the tenant unless `keep_tenant`. Raises NotFound."""
        request = pb.EraseTenantRequest(name=name, keep_tenant=keep_tenant)
        return decode((await answer_of(self._stub.EraseTenant, request, self._timeout_s)).erasure, Erasure)

    async def erasures(self, name: str = "") -> tuple[Erasure, ...]:
        """Return the erasures of deleted tenants of that name, of all with "", in the order of deletion."""
        answer = await answer_of(self._stub.ListErasures, pb.ListErasuresRequest(name=name), self._timeout_s)
        return tuple(decode(one, Erasure) for one in answer.erasures)

    async def create_key(self, tenant: str, expires_in_s: int | None = None) -> tuple[TenantKey, str]:
        """Create a key and return it with its secret. Raises NotFound, InvalidArgument, ResourceExhausted."""
        request = pb.CreateKeyRequest(tenant=tenant, expires_in_s=expires_in_s)
        answer = await answer_of(self._stub.CreateKey, request, self._timeout_s)
        return decode(answer.key, TenantKey), answer.secret

    async def keys(self, tenant: str) -> tuple[TenantKey, ...]:
        """Return a tenant's keys, oldest first. Raises NotFound."""
        answer = await answer_of(self._stub.ListKeys, pb.ListKeysRequest(tenant=tenant), self._timeout_s)
        return tuple(decode(key, TenantKey) for key in answer.keys)

    async def rotate_key(
        self, key_id: str, grace_s: int, expires_in_s: int | None = None
    ) -> tuple[TenantKey, str, TenantKey]:
        """Replace a key, which ends after `grace_s`. Return the new key, its secret and the old key. Raises NotFound,
        FailedPrecondition KEY_ENDED."""
        request = pb.RotateKeyRequest(key_id=key_id, grace_s=grace_s, expires_in_s=expires_in_s)
        answer = await answer_of(self._stub.RotateKey, request, self._timeout_s)
        return decode(answer.key, TenantKey), answer.secret, decode(answer.old_key, TenantKey)

    async def revoke_key(self, key_id: str) -> TenantKey:
        """End a key now. Raises NotFound."""
        answer = await answer_of(self._stub.RevokeKey, pb.RevokeKeyRequest(key_id=key_id), self._timeout_s)
        return decode(answer.key, TenantKey)

    async def usage(self, tenant: str, from_ms: int, to_ms: int, period_s: int = DAY_S) -> tuple[UsagePeriod, ...]:
        """Return a tenant's usage by days or hours that begin in [from_ms, to_ms). Raises InvalidArgument."""
        period = number_of(UsagePeriodLength(period_s), pb.UsagePeriodLength)
        request = pb.GetUsageRequest(tenant=tenant, from_ms=from_ms, to_ms=to_ms, period=period)
        answer = await answer_of(self._stub.GetUsage, request, self._timeout_s)
        return tuple(decode(one, UsagePeriod) for one in answer.periods)
