"""Who may come in: a bounded queue, the plan's share, nobody while draining."""

from pentimento.dataplane.effects import Announce, Effect, PersistAccepted, PrepareRoute, Reject, ResolveRoute
from pentimento.dataplane.endings import end_request
from pentimento.dataplane.events import AcceptDropped, AcceptPersisted, DrainRequested, RequestArrived, RouteResolved
from pentimento.dataplane.state import Phase, Pool, Request, State

# Where nothing is known of a pool's speed yet.
DEFAULT_WAIT_S = 5.0


def on_arrived(state: State, now: float, event: RequestArrived) -> list[Effect]:
    """Admit or reject at once; nothing is journalled for a rejected request."""
    if event.request_id in state.requests:
        return []
    pool = state.pool(event.pool)
    pool.arrived_count += 1
    refusal = _refusal(state, pool, event.request_id)
    if refusal is not None:
        state.counters.rejected += 1
        pool.dropped_count += 1
        return [refusal]
    state.add(Request(event.request_id, event.tenant, event.pool, event.work, event.deadline))
    return [PersistAccepted(event.request_id), PrepareRoute(event.request_id)]


def on_accept_persisted(state: State, now: float, event: AcceptPersisted) -> list[Effect]:
    """From here on the request is not lost; one that was cancelled meanwhile ends in the journal too."""
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.ACCEPTING:
        return []
    state.counters.accepted += 1
    state.enter(request, Phase.ROUTING)
    if request.end is not None:
        announce: list[Effect] = [Announce(request.request_id)]
        return announce + end_request(state, request, request.end, request.end_reason, request.end_message)
    return [Announce(request.request_id), ResolveRoute(request.request_id)]


def on_accept_dropped(state: State, now: float, event: AcceptDropped) -> list[Effect]:
    request = state.requests.get(event.request_id)
    if request is not None and request.phase is Phase.ACCEPTING:
        state.remove(request)
    return []


def on_route_resolved(state: State, now: float, event: RouteResolved) -> list[Effect]:
    """The route's pool may be another than the one that admitted the request (hit or miss, light or heavy)."""
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.ROUTING:
        return []
    state.move(request, event.pool, event.work)
    request.model_digest = event.model_digest
    state.enqueue(request, rerun=False)
    return []


def on_drain_requested(state: State, now: float, event: DrainRequested) -> list[Effect]:
    state.draining = True
    return []


def predicted_wait_s(state: State, pool_name: str) -> float:
    """Seconds that a request admitted now would wait: the work ahead of it over the rate of the pool's workers."""
    pool = state.pools.get(pool_name)
    if pool is None:
        return DEFAULT_WAIT_S
    credit_count = pool.credit_count
    if pool.running_count < credit_count and pool.waiting_count == 0:
        return 0.0
    if credit_count == 0 or pool.seconds_per_work is None:
        return DEFAULT_WAIT_S
    return pool.waiting_work * pool.seconds_per_work / credit_count


def _refusal(state: State, pool: Pool, request_id: str) -> Reject | None:
    if state.draining:
        return Reject(request_id, "DRAINING", "this frontdoor is shutting down", state.settings.min_retry_after_ms)
    limit = state.settings.queue_limit
    if pool.waiting_count >= limit:
        message = f"the queue of pool {pool.name} is full: {pool.waiting_count} of {limit} requests wait"
        return Reject(request_id, "QUEUE_FULL", message, _retry_after_ms(state, pool))
    if not _plan_admits(state):
        return Reject(request_id, "OVER_CAPACITY", "more demand than the plan admits", _retry_after_ms(state, pool))
    return None


def _plan_admits(state: State) -> bool:
    """Spread the plan's admission rate evenly over the arrivals: 0.75 refuses every fourth."""
    if state.plan is None or state.plan.admission_rate >= 1.0:
        return True
    state.admission_share += max(state.plan.admission_rate, 0.0)
    if state.admission_share < 1.0:
        return False
    state.admission_share -= 1.0
    return True


def _retry_after_ms(state: State, pool: Pool) -> int:
    """When the queue will be half empty, so that those who come back do not all meet a full one."""
    settings = state.settings
    wait_ms = predicted_wait_s(state, pool.name) * 1000 / 2
    return round(min(max(wait_ms, settings.min_retry_after_ms), settings.max_retry_after_ms))
