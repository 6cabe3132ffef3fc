"""Map events to effects, and fire timers. The dataplane reads no clock, draws no random number and makes no call."""

import heapq
from collections.abc import Callable, Mapping
from typing import Any

from pentimento.dataplane import (
    admission,
    attempts,
    cascade,
    commits,
    endings,
    events,
    fleet,
    quotas,
    thinning,
)
from pentimento.dataplane.dispatch import dispatch
from pentimento.dataplane.effects import Drained, Effect
from pentimento.dataplane.endings import on_deadline
from pentimento.dataplane.fleet import forget_worker, on_orphan_wait_over
from pentimento.dataplane.requests import Phase, Request
from pentimento.dataplane.settings import DataplaneSettings
from pentimento.dataplane.state import State, TimerKind

Handler = Callable[[State, float, Any], list[Effect]]


def on_time_passed(state: State, now: float, event: events.TimePassed) -> list[Effect]:
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


HANDLERS: Mapping[type, Handler] = {
    events.RequestArrived: admission.on_arrived,
    events.AcceptPersisted: admission.on_accept_persisted,
    events.AcceptDropped: admission.on_accept_dropped,
    events.RouteResolved: admission.on_route_resolved,
    events.DrainRequested: admission.on_drain_requested,
    events.AttemptPersisted: attempts.on_attempt_persisted,
    events.AttemptStarted: attempts.on_attempt_started,
    events.AttemptYielded: attempts.on_attempt_yielded,
    events.AttemptProgressed: thinning.on_attempt_progressed,
    events.AttemptFinished: attempts.on_attempt_finished,
    events.AttemptFailed: attempts.on_attempt_failed,
    events.Scored: cascade.on_scored,
    events.ResultCommitted: commits.on_result_committed,
    events.CommitFailed: commits.on_commit_failed,
    events.EndPersisted: endings.on_end_persisted,
    events.EffectFailed: endings.on_effect_failed,
    events.CancelRequested: endings.on_cancel_requested,
    events.WorkerReported: fleet.on_worker_reported,
    events.WorkerLost: fleet.on_worker_lost,
    events.PlanReceived: fleet.on_plan_received,
    events.ProfilesReceived: fleet.on_profiles_received,
    events.QuotasReceived: quotas.on_quotas_received,
    events.Recovered: fleet.on_recovered,
    events.TookOver: fleet.on_took_over,
    events.TimePassed: on_time_passed,
}


class Dataplane:
    """Run one active dataplane of a cell. The same events at the same times give the same effects."""

    def __init__(self, epoch: int, settings: DataplaneSettings | None = None) -> None:
        """Make a dataplane; `epoch` 0 is a standby, which accepts no request before `TookOver`."""
        self.state = State(epoch, settings or DataplaneSettings())

    def on_event(self, now: float, event: events.Event) -> list[Effect]:
        """Apply an event and return the effects to perform. `now` in monotonic seconds. Late, repeated and reordered
        events are safe."""
        state = self.state
        effects = HANDLERS[type(event)](state, now, event)
        if state.dirty:
            effects = effects + dispatch(state, now)
        if state.draining and not state.requests and not state.drained:
            state.drained = True
            effects = [*effects, Drained()]
        forget_timers(state)
        return effects

    def next_wakeup(self) -> float | None:
        """Return when TimePassed is due; None without a timer."""
        return self.state.timers[0][0] if self.state.timers else None
