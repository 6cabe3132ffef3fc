"""Tenants, keys and usage: pentimento.api.tenants.v1 beside pentimento.domain.tenants."""

from collections.abc import Sequence
from dataclasses import replace

from pentimento.api.tenants.v1 import tenant_service_pb2 as pb
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.tenants import DAY_S, HOUR_S, Tenant, TenantKey, TenantQuota, UsagePeriod

_BOUNDS = ("requests_per_s", "burst_count", "concurrent_count", "cost_per_minute", "cache_bytes")
_LENGTHS = {pb.USAGE_PERIOD_LENGTH_HOUR: HOUR_S, pb.USAGE_PERIOD_LENGTH_DAY: DAY_S}


def quota_to_proto(quota: TenantQuota) -> pb.TenantQuota:
    """Return the message of a quota."""
    bounds = {name: getattr(quota, name) for name in _BOUNDS}
    return pb.TenantQuota(**bounds, weight=quota.weight, pools=quota.pools)


def quota_from_proto(message: pb.TenantQuota) -> TenantQuota:
    """Return the quota of a message. Raises InvalidArgument that names field and limit."""
    bounds = {name: getattr(message, name) for name in _BOUNDS if message.HasField(name)}  # type: ignore[arg-type]
    weight = message.weight if message.HasField("weight") else TenantQuota.weight
    try:
        return TenantQuota(**bounds, weight=weight, pools=tuple(message.pools))
    except InvalidArgument as error:
        wrong = error.violations[0]
        raise InvalidArgument.of(f"quota.{wrong.field}", wrong.description) from None


def tenant_to_proto(tenant: Tenant) -> pb.Tenant:
    """Return the message of a tenant."""
    return pb.Tenant(
        name=tenant.name,
        quota=quota_to_proto(tenant.quota),
        created_at_ms=_ms(tenant.created_at),
        revision=tenant.revision,
    )


def tenant_from_proto(message: pb.Tenant) -> Tenant:
    """Return the tenant of a message."""
    return Tenant(message.name, quota_from_proto(message.quota), message.created_at_ms / 1000, message.revision)


def key_to_proto(key: TenantKey) -> pb.TenantKey:
    """Return the message of a key."""
    return pb.TenantKey(
        key_id=key.key_id,
        tenant=key.tenant,
        created_at_ms=_ms(key.created_at),
        expires_at_ms=_ms(key.expires_at) if key.expires_at is not None else None,
        revoked_at_ms=_ms(key.revoked_at) if key.revoked_at is not None else None,
    )


def key_from_proto(message: pb.TenantKey) -> TenantKey:
    """Return the key of a message."""
    key = TenantKey(message.key_id, message.tenant, message.created_at_ms / 1000)
    if message.HasField("expires_at_ms"):
        key = replace(key, expires_at=message.expires_at_ms / 1000)
    return replace(key, revoked_at=message.revoked_at_ms / 1000) if message.HasField("revoked_at_ms") else key


def period_length_s(number: pb.UsagePeriodLength.ValueType) -> int:
    """Return the seconds of a period; InvalidArgument for one that is not known."""
    if number not in _LENGTHS:
        raise InvalidArgument.of("period", f"must be one of {sorted(_LENGTHS)}, got {number}")
    return _LENGTHS[number]


def period_length_to_proto(length_s: int) -> pb.UsagePeriodLength.ValueType:
    """Return the length of a period of hours or days."""
    return next(number for number, seconds in _LENGTHS.items() if seconds == length_s)


def usage_to_proto(periods: Sequence[UsagePeriod]) -> pb.GetUsageResponse:
    """Return the message of what a tenant used."""
    return pb.GetUsageResponse(
        periods=[
            pb.UsagePeriod(
                start_at_ms=period.start_at * 1000,
                request_count=period.request_count,
                picture_count=period.picture_count,
                cache_hit_count=period.cache_hit_count,
                painted_cost=period.painted_cost,
                device_s=period.device_s,
                cached_bytes=period.cached_bytes,
                refused_counts=period.refused,
            )
            for period in periods
        ]
    )


def usage_from_proto(message: pb.GetUsageResponse) -> tuple[UsagePeriod, ...]:
    """Return what a tenant used, of a message."""
    return tuple(
        UsagePeriod(
            period.start_at_ms // 1000,
            period.request_count,
            period.picture_count,
            period.cache_hit_count,
            period.painted_cost,
            period.device_s,
            period.cached_bytes,
            dict(period.refused_counts),
        )
        for period in message.periods
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
