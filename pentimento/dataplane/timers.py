"""Fire timers that are due."""

import heapq

from pentimento.dataplane.effects import Effect
from pentimento.dataplane.endings import on_deadline
from pentimento.dataplane.events import TimePassed
from pentimento.dataplane.fleet import forget_worker
from pentimento.dataplane.recovery import on_orphan_wait_over
from pentimento.dataplane.requests import Phase, Request
from pentimento.dataplane.state import State, TimerKind


def on_time_passed(state: State, now: float, event: TimePassed) -> list[Effect]:
    """Fire every timer that is due; a timer of a removed request has no effect."""
    effects: list[Effect] = []
    while state.timers and state.timers[0][0] <= now:
        _, _, kind, key = heapq.heappop(state.timers)
        if kind is TimerKind.FORGET_WORKER:
            forget_worker(state, now, key)
            continue
        request = state.requests.get(key)
        if request is not None:
            effects += _fire(state, now, kind, request)
    return effects


def forget_timers(state: State) -> None:
    """Drop timers without a request or worker at the front of the heap, so that they cause no wakeup."""
    timers = state.timers
    while timers and not state.is_set(timers[0]):
        heapq.heappop(timers)


def _fire(state: State, now: float, kind: TimerKind, request: Request) -> list[Effect]:
    match kind:
        case TimerKind.DEADLINE:
            return on_deadline(state, now, request)
        case TimerKind.ORPHAN_WAIT:
            on_orphan_wait_over(state, request)
        case _ if request.phase is Phase.QUEUED:
            state.dirty[request.lane_key] = None
    return []
