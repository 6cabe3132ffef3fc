"""Enforce tenant quotas: reject requests over a quota before they are stored."""

import math

from pentimento.dataplane.effects import Effect, Reject
from pentimento.dataplane.events import QuotasReceived, RequestArrived
from pentimento.dataplane.predictions import retry_after_ms
from pentimento.dataplane.state import State
from pentimento.domain.reasons import Reason
from pentimento.policies.tenant_quota import QuotaMeter, QuotaRefusal


def on_quotas_received(state: State, now: float, event: QuotasReceived) -> list[Effect]:
    """Adopt these quotas; a tenant without one is no longer limited by a quota."""
    quotas = dict(event.quotas)
    for tenant in state.meters.keys() - quotas.keys():
        del state.meters[tenant]
    for tenant, quota in quotas.items():
        meter = state.meters.get(tenant)
        if meter is None:
            state.meters[tenant] = QuotaMeter(quota, now)
        elif meter.quota != quota:
            meter.follow(quota, now)
    # The queues hold this very mapping.
    state.weights.clear()
    state.weights.update({tenant: quota.weight for tenant, quota in quotas.items() if quota.weight != 1.0})
    return []


def quota_refusal(state: State, now: float, event: RequestArrived) -> Reject | None:
    """Return the rejection of all requests that arrive together, if they exceed a quota of their tenant or their pool
    is not allowed to it. Changes nothing."""
    meter = state.meters.get(event.tenant)
    if meter is None:
        return None
    if not meter.quota.allows(event.pool):
        message = f"this tenant may not use pool {event.pool}"
        return Reject(event.request_id, Reason.POOL_NOT_ALLOWED, message, 0, "pools")
    count = len(event.request_ids)
    found = meter.refusal(now, count, count * event.work, state.tenant_counts.get(event.tenant, 0))
    if found is None:
        return None
    message = f"{found.quota}: {found.limit} of this tenant"
    return Reject(
        event.request_id, Reason.TENANT_QUOTA, message, _retry_after_ms(state, now, event.pool, found), found.quota
    )


def _retry_after_ms(state: State, now: float, pool: str, refusal: QuotaRefusal) -> int:
    """Return the milliseconds until a retry is worthwhile; 0 for never."""
    if refusal.wait_s is None:
        return retry_after_ms(state, now, pool)
    return math.ceil(refusal.wait_s * 1000) if math.isfinite(refusal.wait_s) else 0
