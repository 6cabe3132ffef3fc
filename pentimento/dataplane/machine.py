"""Map events to effects. The dataplane reads no clock, draws no random number and makes no call."""

from collections.abc import Callable, Mapping
from typing import Any

from pentimento.dataplane import (
    admission,
    attempts,
    cascade,
    commits,
    defects,
    endings,
    events,
    fleet,
    quotas,
    recovery,
    thinning,
    timers,
)
from pentimento.dataplane.dispatch import dispatch
from pentimento.dataplane.effects import Drained, Effect
from pentimento.dataplane.pools import Pool
from pentimento.dataplane.predictions import predicted_wait_s, service_s
from pentimento.dataplane.settings import DataplaneSettings
from pentimento.dataplane.state import State
from pentimento.policies.thinning import Pressure, ThinningOffer

Handler = Callable[[State, float, Any], list[Effect]]

_HANDLERS: Mapping[type, Handler] = {
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
    events.EffectFailed: defects.on_effect_failed,
    events.CancelRequested: endings.on_cancel_requested,
    events.WorkerReported: fleet.on_worker_reported,
    events.WorkerLost: fleet.on_worker_lost,
    events.PlanReceived: fleet.on_plan_received,
    events.ProfilesReceived: fleet.on_profiles_received,
    events.QuotasReceived: quotas.on_quotas_received,
    events.Recovered: recovery.on_recovered,
    events.TookOver: recovery.on_took_over,
    events.TimePassed: timers.on_time_passed,
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
        effects = _HANDLERS[type(event)](state, now, event)
        if state.dirty:
            effects = effects + dispatch(state, now)
        if state.draining and not state.requests and not state.drained:
            state.drained = True
            effects = [*effects, Drained()]
        timers.forget_timers(state)
        return effects

    def next_wakeup(self) -> float | None:
        """Return when TimePassed is due; None without a timer."""
        return self.state.timers[0][0] if self.state.timers else None

    def service_s(self, pool: str, work: float) -> float | None:
        """Return the seconds of `work` pixel steps in the pool, in a batch of one; None if no speed is known."""
        return service_s(self.state, pool, work)

    def device_s(self, pool: str, work: float, offer: ThinningOffer) -> float | None:
        """Return the device seconds of `work` pixel steps in the pool now: its share of a full batch, without the steps
        that would be skipped for any deadline. None if no speed is known."""
        return thinning.device_s(self.state, pool, work, offer)

    def is_shorter_from_noise(self, pool: str, noise: ThinningOffer, steps_left: int) -> bool:
        """Return whether thinning leaves fewer steps from noise than the `steps_left` after a cached latent, in the
        pool's current load."""
        return thinning.is_shorter_from_noise(self.state, pool, noise, steps_left)

    def predicted_wait_s(self, pool: str) -> float:
        """Return the seconds that a request admitted to the pool now would wait for a worker."""
        return predicted_wait_s(self.state, pool)

    def foreseen_pressure(self, pool: Pool, work: float, step_count: float, deadline_s: float) -> Pressure:
        """Return the time per step and the time left for a request that would arrive at the pool now."""
        return thinning.foreseen_pressure(self.state, pool, work, step_count, deadline_s)
