"""Admit or reject arriving requests by the queue limit, the quotas, the plan's admission rate and the deadline."""

from dataclasses import replace

from pentimento.dataplane.cascade import leave_out_stage, leaves_out_stage, stand_in_pool
from pentimento.dataplane.effects import Announce, Effect, PersistAccepted, PrepareRoute, Reject, ResolveRoute
from pentimento.dataplane.endings import drop_late, end_request
from pentimento.dataplane.events import AcceptDropped, AcceptPersisted, DrainRequested, RequestArrived, RouteResolved
from pentimento.dataplane.pools import Pool
from pentimento.dataplane.predictions import MIN_RETRY_AFTER_MS, predicted_end_s, predicted_wait_s, retry_after_ms
from pentimento.dataplane.quotas import quota_refusal
from pentimento.dataplane.requests import Phase, Request
from pentimento.dataplane.state import State
from pentimento.domain.reasons import Reason
from pentimento.policies.plan.entry import NOISE
from pentimento.policies.thinning import ThinningOffer, thinnable


def on_arrived(state: State, now: float, event: RequestArrived) -> list[Effect]:
    """Admit or reject a request immediately, with one decision for all requests that arrive together. A rejected
    request is not journalled."""
    ids = event.request_ids
    if any(request_id in state.requests for request_id in ids):
        return []
    pool = state.pool(event.pool)
    pool.arrived_count += len(ids)
    refusal = _refusal(state, now, pool, event)
    if refusal is not None:
        state.counters.rejected += len(ids)
        pool.dropped_count += len(ids)
        return [replace(refusal, request_id=request_id) for request_id in ids]
    if (meter := state.meters.get(event.tenant)) is not None:
        meter.take(now, len(ids), len(ids) * event.work)
    for request_id in ids:
        request = Request(request_id, event.tenant, event.pool, event.work, event.deadline, event.cascade)
        request.needs, request.thinning, request.cascade_name = event.needs, event.thinning, event.cascade_name
        request.has_inputs, request.planned = event.has_inputs, event.planned
        state.add(request)
    return [effect for request_id in ids for effect in (PersistAccepted(request_id), PrepareRoute(request_id))]


def on_accept_persisted(state: State, now: float, event: AcceptPersisted) -> list[Effect]:
    """Announce the request and begin its routing. From here on it is durable; a request that was cancelled before the
    journal answered ends in the journal too."""
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.ACCEPTING:
        return []
    state.counters.accepted += 1
    state.enter(request, Phase.ROUTING)
    if request.ending is not None:
        announce: list[Effect] = [Announce(request.request_id)]
        ending = request.ending
        return announce + end_request(state, request, ending.end, ending.reason, ending.message)
    return [Announce(request.request_id), ResolveRoute(request.request_id)]


def on_accept_dropped(state: State, now: float, event: AcceptDropped) -> list[Effect]:
    """Forget a request that must not run."""
    request = state.requests.get(event.request_id)
    if request is not None and request.phase is Phase.ACCEPTING:
        state.remove(request)
        if (meter := state.meters.get(request.tenant)) is not None:
            meter.give_back(now, 1, request.work)
    return []


def on_route_resolved(state: State, now: float, event: RouteResolved) -> list[Effect]:
    """Queue the request in the lanes of its route. The route's pool may differ from the pool that admitted the request
    (hit or miss, light or heavy)."""
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.ROUTING or request.cascade_stage != event.cascade_stage:
        return []
    state.move(request, event.pool, event.work, event.thinning)
    request.model_digest, request.route_pinned = event.model_digest, False
    request.spare, request.pair, request.start = event.spare, event.pair, event.start
    if event.cascade:
        request.cascade, request.cascade_name = event.cascade, event.cascade_name
    request.foreseen = event.foreseen
    if event.foreseen is not None:
        state.recommended_threshold = event.foreseen.threshold
    if leaves_out_stage(state, request, event.light_price):
        return leave_out_stage(state, request)
    if event.start == NOISE:
        _count_thinnable(state, state.pool(event.pool), event.thinning)
    if state.drops_late and _has_resort(state, request):
        end_s = predicted_end_s(state, now, state.pool(event.pool), request)
        if end_s is not None and now + end_s > request.deadline:
            return drop_late(state, now, request, end_s)
    state.enqueue(request, rerun=False)
    return []


def _count_thinnable(state: State, pool: Pool, offer: ThinningOffer) -> None:
    pool.from_noise_count += 1
    if offer.options:
        told = thinnable(state.settings.thinning, offer)
        pool.spare_shares += told.spare_shares
        pool.lost_shares += told.lost_shares


def _has_resort(state: State, request: Request) -> bool:
    """Decide whether a request that will be late need not wait in the queue: an earlier image or another stage answers
    it, or another stage stood in for it before."""
    return bool(request.fallback_token or request.stood_in or stand_in_pool(state, request))


def on_drain_requested(state: State, now: float, event: DrainRequested) -> list[Effect]:
    """Refuse new requests from here on; Drained follows once no accepted request is left."""
    state.draining = True
    return []


def _refusal(state: State, now: float, pool: Pool, event: RequestArrived) -> Reject | None:
    if state.draining:
        return Reject(event.request_id, Reason.DRAINING, "this frontdoor is shutting down", MIN_RETRY_AFTER_MS)
    if not state.epoch:
        return Reject(event.request_id, Reason.STANDBY, "this frontdoor is a standby", MIN_RETRY_AFTER_MS)
    over_quota = quota_refusal(state, now, event)
    if over_quota is not None:
        return over_quota
    count = len(event.request_ids)
    message = _why_full(state, pool, event.tenant, count)
    if message:
        return Reject(event.request_id, "QUEUE_FULL", message, retry_after_ms(state, now, pool.name))
    least_share = event.thinning.least_share if state.thins and not state.plan_thins else 1.0
    if not _plan_admits(state, least_share, count):
        message = "more demand than the plan admits"
        return Reject(event.request_id, "OVER_CAPACITY", message, retry_after_ms(state, now, pool.name))
    return _too_late(state, now, pool, event)


def _why_full(state: State, pool: Pool, tenant: str, count: int) -> str:
    """Return why `count` more requests of the tenant have no room, "" if they have. A tenant may fill its share of the
    queue, by its weight among the tenants with waiting requests; a single tenant leaves room for as much again."""
    limit = state.settings.queue_limit
    backlog = pool.tenants.get(tenant)
    own_count = backlog.count if backlog is not None else 0
    tenant_count = len(pool.tenants) + (backlog is None)
    parts = _parts(state, pool, tenant) if state.weights else tenant_count
    share = limit if tenant_count == 1 else max(int(limit / parts), min(limit, 1))
    for_all = f", {count} more have no room" if count > 1 else ""
    if own_count + count > share:
        whose = "" if tenant_count == 1 else " of this tenant"
        return f"the queue of pool {pool.name} is full: {own_count} of {share} requests{whose} wait{for_all}"
    if pool.waiting_count + count > 2 * limit:
        return f"the queue of pool {pool.name} is full: {pool.waiting_count} requests wait{for_all}"
    return ""


def _parts(state: State, pool: Pool, tenant: str) -> float:
    """Return the sum of the weights of all tenants that wait in the pool, divided by this tenant's weight."""
    weights = state.weights
    own = weights.get(tenant, 1.0)
    return 1.0 + sum(weights.get(other, 1.0) for other in pool.tenants if other != tenant) / own


def _too_late(state: State, now: float, pool: Pool, event: RequestArrived) -> Reject | None:
    if not state.drops_late:
        return None
    end_s = predicted_end_s(state, now, pool, event)
    if end_s is None or now + end_s <= event.deadline or _stands_in_in_time(state, now, event):
        return None
    left_s = max(event.deadline - now, 0.0)
    message = f"predicted to take {end_s:.3g} s, the deadline is in {left_s:.3g} s"
    comes_back_ms = retry_after_ms(state, now, pool.name, end_s - left_s)
    return Reject(event.request_id, Reason.PREDICTED_LATE, message, comes_back_ms)


def _stands_in_in_time(state: State, now: float, event: RequestArrived) -> bool:
    """Decide whether another stage stands in and reaches the request before the deadline. The route decides how long
    the stage takes for it."""
    pool = state.pools.get(stand_in_pool(state, event))
    if pool is None or _why_full(state, pool, event.tenant, len(event.request_ids)):
        return False
    return now + predicted_wait_s(state, pool.name) < event.deadline


def _plan_admits(state: State, least_share: float, count: int) -> bool:
    """Spread the plan's admission rate evenly over the arrivals: 0.75 refuses every fourth. Requests that may run
    only `least_share` of their steps are admitted at 1 / `least_share` times the rate: the plan counts all steps.
    `count` requests arrive together and are admitted as soon as one would be; later arrivals pay for the excess."""
    if state.plan is None or state.plan.admission_rate >= least_share:
        return True
    state.admission_share += count * max(state.plan.admission_rate, 0.0) / least_share
    if state.admission_share < 1.0:
        return False
    state.admission_share -= count
    return True
