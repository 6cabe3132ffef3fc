"""What is due by the clock."""

import heapq

from pentimento.dataplane.effects import Effect
from pentimento.dataplane.endings import on_deadline
from pentimento.dataplane.events import TimePassed
from pentimento.dataplane.fleet import forget_worker
from pentimento.dataplane.recovery import on_orphan_wait_over
from pentimento.dataplane.state import Phase, Request, State, TimerKind


def on_time_passed(state: State, now: float, event: TimePassed) -> list[Effect]:
    """Fire every timer that is due; those of requests that are gone do nothing."""
    effects: list[Effect] = []
    while state.timers and state.timers[0][0] <= now:
        _, _, kind, key = heapq.heappop(state.timers)
        if kind is TimerKind.FORGET_WORKER:
            forget_worker(state, key)
            continue
        request = state.requests.get(key)
        if request is not None:
            effects += _fire(state, kind, request)
    return effects


def _fire(state: State, kind: TimerKind, request: Request) -> list[Effect]:
    if kind is TimerKind.DEADLINE:
        return on_deadline(state, request)
    if kind is TimerKind.ORPHAN_WAIT:
        on_orphan_wait_over(state, request)
    elif request.phase is Phase.QUEUED:
        state.dirty[request.pool, request.model_digest] = None
    return []
