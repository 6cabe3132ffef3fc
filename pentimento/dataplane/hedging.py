"""A second try beside one that takes too long. Off unless `hedge_after` is set: it costs devices that may be needed."""

from pentimento.dataplane.attempts import start_attempt
from pentimento.dataplane.effects import Effect, Hedge
from pentimento.dataplane.requests import Phase, Request
from pentimento.dataplane.state import State
from pentimento.dataplane.suitability import cheapest_worker


def on_hedge_due(state: State, now: float, request: Request) -> list[Effect]:
    """Start a second attempt beside one that takes too long: only on a worker that idles while nobody waits, and once
    for each attempt."""
    lane = state.lanes.get(request.lane_key)
    if request.phase is not Phase.RUNNING or now >= request.deadline or len(request.live) != 1 or lane is None:
        return []
    if not lane.ready or lane.reruns or lane.fresh or lane.spare:
        return []
    worker = cheapest_worker(state, request.lane_key, request)
    slow = (request.request_id, request.live[0])
    if worker is None or worker.used_credits or worker.worker_id == state.attempt_workers[slow]:
        return []
    state.counters.hedged += 1
    return [Hedge(*slow), start_attempt(state, now, request, worker)]
