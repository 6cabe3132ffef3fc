"""The simulator: perform the dataplane's effects in virtual time.

Arrivals, devices and the controller add events to the agenda. Each goes into `Dataplane.on_event`, and this module
performs its effects as `services/frontdoor` does live, after their delays.

The dataplane, the policies, the selector and the eviction rules are the live ones. Only time is simulated: steps,
journal commits and messages, with their variance. The given random generator makes it deterministic.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from lab.emulation.attempt_steps import AttemptSteps
from lab.emulation.cost_draws import draw
from lab.emulation.device import EmulatedDevice
from lab.emulation.jobs import EmulatedJob
from lab.runs import RequestRecord, StageSpan
from lab.simulator.adapters import SimulatedAdapters
from lab.simulator.agenda import Agenda
from lab.simulator.cache import SimulatedCache
from lab.simulator.components import SimulatedReports
from lab.simulator.controller import SimulatedController
from lab.simulator.endings import Endings
from lab.simulator.fleet import RETRIEVAL_POOL, SimulatedFleet
from lab.simulator.ledger import SimulatedImage, SimulatedRequest, draws_of
from lab.simulator.progress import SimulatedProgress
from lab.simulator.reuse import Reuse
from lab.simulator.routing import SimulatedRouting
from lab.simulator.scenario import Outage, Scenario
from lab.workloads import Arrival, Workload
from pentimento.dataplane import Dataplane, effects, events
from pentimento.dataplane.events import AttemptKey
from pentimento.policies.plan.registry import CacheUse
from pentimento.profiles.costs import Cost

# Reports between two plans (DiffServe's artefact: every second of five).
REPORTS_A_PLAN = 5


class Simulation:
    """One run of one workload. `events_count` are the dataplane's. `cache`: None for one by the scenario."""

    def __init__(
        self, scenario: Scenario, workload: Workload, rng: Random, cache: SimulatedCache | None = None
    ) -> None:
        self._scenario = scenario
        self._workload = workload
        self._random = rng
        self._draws = [draws_of(arrival, rng) for arrival in workload.arrivals]
        self._agenda = Agenda()
        self.dataplane = Dataplane(1, scenario.dataplane)
        self.events_count, self._comes = 0, True
        self._events: deque[events.Event] = deque()
        self._requests: dict[str, SimulatedRequest] = {}
        self._adapters = SimulatedAdapters(scenario.adapters, workload.arrivals)
        self._fleet = SimulatedFleet(scenario, self._agenda, self, rng)
        self._controller = SimulatedController(
            scenario.policy,
            self.dataplane,
            self._fleet.devices,
            self._fleet.available,
            self._fleet.profiles,
            SimulatedReports(scenario, self._fleet, workload.arrivals).of,
        )
        self._reuse = Reuse(scenario, workload, self._fleet, self.dataplane, cache)
        self._routing = SimulatedRouting(
            scenario, self.dataplane, self._fleet, self._reuse, self._adapters, self._controller.starts
        )
        self._endings = Endings(scenario, self._agenda, rng, self._fleet, self._controller, self._reuse, self._requests)
        self._progress = SimulatedProgress(self.submit)
        self._performers: Mapping[type, Callable[[Any], None]] = {
            effects.Reject: self._endings.reject,
            effects.PersistAccepted: self._persist_accepted,
            effects.PrepareRoute: _nothing,
            effects.Announce: _nothing,
            effects.ResolveRoute: self._resolve_route,
            effects.PersistAttempt: self._persist_attempt,
            effects.ReservePair: _nothing,
            effects.Execute: self._execute,
            effects.Attach: _nothing,
            effects.StopAttempt: self._stop_attempt,
            effects.ThinAttempt: self._progress.thin,
            effects.Score: self._score,
            effects.CommitResult: self._commit_result,
            effects.CommitCacheEntries: self._endings.commit_cache,
            effects.ReleaseGrant: _nothing,
            effects.PersistEnd: self._persist_end,
            effects.Deliver: self._endings.deliver,
            effects.DeliverEnd: self._endings.deliver_end,
            effects.DeliverRecorded: _nothing,
            effects.Drained: _nothing,
        }

    def run(self) -> list[RequestRecord]:
        """Return the record of every arrival, in the order they end. Raises FailedPrecondition if some never end."""
        self._begin()
        arrivals = iter(enumerate(self._workload.arrivals))
        coming = next(arrivals, None)
        while coming is not None or self._requests:
            at_s = self._comes_at_s(coming[1]) if coming is not None else None
            self._comes = at_s is not None
            due_s, wakeup_s = self._agenda.next_time(), self.dataplane.next_wakeup()
            if at_s is not None and _first(at_s, due_s) and _first(at_s, wakeup_s):
                assert coming is not None
                self._agenda.now = max(at_s, self._agenda.now)
                index, arrival = coming
                self._arrive(index, replace(arrival, at_s=at_s) if self._scenario.closed_loop else arrival)
                coming = next(arrivals, None)
            elif due_s is not None and _first(due_s, wakeup_s):
                action, argument = self._agenda.pop()
                action(argument)
            elif wakeup_s is not None:
                self._agenda.now = max(wakeup_s, self._agenda.now)
                self.submit(events.TimePassed())
            self._settle()
        return self._endings.records

    def _comes_at_s(self, arrival: Arrival) -> float | None:
        """When the next request arrives; None while a closed loop is full."""
        outstanding = self._scenario.closed_loop
        if not outstanding:
            return arrival.at_s
        return self._agenda.now if len(self._requests) < outstanding else None

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._agenda.now

    @property
    def busy_s(self) -> float:
        """Seconds that all devices together computed."""
        return sum(device.busy_s for device in self._fleet.devices.values())

    @property
    def adapter_wait_s(self) -> float:
        """Return the seconds that attempts waited for loads of LoRAs."""
        return sum(device.adapters.waited_s for device in self._fleet.devices.values())

    @property
    def model_load_s(self) -> float:
        """Return the seconds of all loads of models."""
        return self._fleet.load_s

    @property
    def loaded_count(self) -> int:
        """LoRAs that devices had to load."""
        return sum(device.adapters.loaded_count for device in self._fleet.devices.values())

    def submit(self, event: events.Event) -> None:
        """It comes after all effects of the events before it, as in the live interpreter."""
        self._events.append(event)

    def _settle(self) -> None:
        on_event, performers, agenda, waiting = self.dataplane.on_event, self._performers, self._agenda, self._events
        while waiting:
            self.events_count += 1
            for effect in on_event(agenda.now, waiting.popleft()):
                performers[type(effect)](effect)

    def _later(
        self, cost: Cost, event: events.Event, request: SimulatedRequest | None = None, stage: str = ""
    ) -> float:
        """Submit it after that time, at once where it costs none; the time, which is a stage of the request."""
        if cost.mean_s <= 0.0:
            self._events.append(event)
            return 0.0
        seconds, now = draw(cost, self._random), self._agenda.now
        self._agenda.at(now + seconds, self.submit, event)
        if request is not None:
            request.stages.append(StageSpan(stage, now, now + seconds))
        return seconds

    # events from outside

    def _begin(self) -> None:
        self.submit(events.ProfilesReceived(self._fleet.speed_profiles()))
        self.submit(events.QuotasReceived(self._scenario.quotas))
        for device in self._fleet.devices.values():
            if not device.lost:
                self.device_reports(device)
        if self._scenario.policy.cache is CacheUse.RETRIEVAL:
            self.submit(self._fleet.retrieval_report())
        self._settle()
        self._control()
        self._settle()
        for outage in self._scenario.outages:
            self._agenda.at(outage.at_s, self._break, outage)

    def _control(self, _: None = None) -> None:
        moves, now = self._comes or self._agenda.next_time() is not None, self._agenda.now
        plan = self._controller.plan(now, moves)
        if plan is not None:
            self.submit(events.PlanReceived(plan))
            self._fleet.follow(plan)
            self._reuse.follow(plan)
        period_s = self._scenario.control_period_s
        for number in range(1, REPORTS_A_PLAN):
            self._agenda.at(now + number * period_s / REPORTS_A_PLAN, self._report)
        self._agenda.at(now + period_s, self._control)

    def _report(self, _: None) -> None:
        self._controller.report(self._agenda.now)

    def _arrive(self, index: int, arrival: Arrival) -> None:
        request, arrived = self._routing.arrived(f"r{index}", arrival, *self._draws[index])
        self._requests[request.request_id] = request
        self.submit(arrived)

    def _break(self, outage: Outage) -> None:
        generation = self._fleet.devices[outage.worker_id].generation
        for job in self._fleet.lose(outage.worker_id, outage.for_s):
            self._progress.end(job.owner)
        lost = events.WorkerLost(outage.worker_id, generation)
        self._agenda.at(self._agenda.now + outage.noticed_s, self.submit, lost)

    # events of devices

    def device_reports(self, device: EmulatedDevice[AttemptKey]) -> None:
        self.submit(
            events.WorkerReported(
                device.worker_id,
                device.costs.model,
                self._fleet.digest_of(device.costs.model),
                device.generation,
                device.credit_count,
                draining=device.draining,
                reserve_count=device.reserve_count,
                holdings=self._adapters.news(device.worker_id, device.generation, device.adapters.resident),
            )
        )

    def job_began(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        self.submit(events.AttemptStarted(*job.owner))

    def job_yielded(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        self.submit(events.AttemptYielded(*job.owner))

    def job_finished(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        request, thinned = self._requests.get(job.owner[0]), self._progress.end(job.owner)
        if request is not None:
            request.device_s += job.device_s
            # A request deferred while this attempt ran has another start by now.
            share, model = self._fleet.thinned_share(device.costs.model, thinned), device.costs.model
            request.painted[job.owner[1]] = SimulatedImage(request.pool, model, request.start, request.steps, share)
            request.stages.append(StageSpan("wait_worker", job.arrived_s, job.began_s))
            request.stages.append(StageSpan("paint", job.began_s, self._agenda.now))
        self._later(self._scenario.delays.result, events.AttemptFinished(*job.owner), request, "receive")

    def job_stopped(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        request = self._requests.get(job.owner[0])
        self._progress.end(job.owner)
        if request is not None:
            request.device_s += job.device_s
        failed = events.AttemptFailed(*job.owner, events.FailureKind.STOPPED)
        self._later(self._scenario.delays.result, failed)

    def job_dropped(self, device: EmulatedDevice[AttemptKey], job: EmulatedJob[AttemptKey]) -> None:
        self._progress.end(job.owner)
        failed = events.AttemptFailed(*job.owner, events.FailureKind.DEADLINE)
        self._later(self._scenario.delays.result, failed)

    def batch_stepped(self, batch: Sequence[EmulatedJob[AttemptKey]], seconds: float, late_s: float) -> None:
        """Report progress if steps may be skipped; otherwise simulated devices report only changes."""
        self._progress.stepped(batch, self._agenda.now)

    # Effects.

    def _persist_accepted(self, effect: effects.PersistAccepted) -> None:
        request = self._requests[effect.request_id]
        self._later(self._scenario.delays.accept, events.AcceptPersisted(effect.request_id), request, "accept")

    def _resolve_route(self, effect: effects.ResolveRoute) -> None:
        request = self._requests[effect.request_id]
        resolved = self._routing.resolved(request, effect)
        route_s = self._later(self._scenario.delays.route, resolved, request, "route")
        request.queued_s = self._agenda.now + route_s

    def _persist_attempt(self, effect: effects.PersistAttempt) -> None:
        request = self._requests[effect.request_id]
        request.pool, request.model = request.options[effect.option]
        request.steps = self._fleet.steps_of(request.model, request.arrival)
        request.stages.append(StageSpan("queue", request.queued_s, self._agenda.now))
        persisted = events.AttemptPersisted(effect.request_id, effect.fencing_token)
        self._later(self._scenario.delays.attempt, persisted, request, "attempt")

    def _execute(self, effect: effects.Execute) -> None:
        cost = self._scenario.delays.execute
        if cost.mean_s <= 0.0:
            self._start(effect)
        else:
            seconds, now = draw(cost, self._random), self._agenda.now
            self._requests[effect.request_id].stages.append(StageSpan("send", now, now + seconds))
            self._agenda.at(now + seconds, self._start, effect)

    def _start(self, effect: effects.Execute) -> None:
        request = self._requests.get(effect.request_id)
        attempt = (effect.request_id, effect.fencing_token)
        if effect.worker_id == RETRIEVAL_POOL:
            assert request is not None
            request.painted[effect.fencing_token] = SimulatedImage(RETRIEVAL_POOL, "", request.start, request.steps)
            self.submit(events.AttemptFinished(*attempt))
            return
        device = self._fleet.devices[effect.worker_id]
        if device.lost:
            return  # no answer; the frontdoor notices in its time
        if request is None or device.generation != effect.worker_generation or device.draining:
            self.submit(events.AttemptFailed(*attempt, events.FailureKind.NOT_HELD))
            return
        own_steps = self._fleet.steps_of(device.costs.model, request.arrival)
        first_step = own_steps - self._routing.steps_left(request, device.costs.model)
        steps = AttemptSteps(first_step, own_steps, effect.thinned_steps)
        self._progress.begin(attempt, steps)
        if self._scenario.even_split:
            device = self._random.choice(self._fleet.holding(device.costs.model))
        adapters = self._adapters.of(request.arrival)
        drop_at_s = self._drop_at_s(request.arrival)
        device.start(attempt, steps.taken_count, effect.deadline, drop_at_s, adapters=adapters)

    def _drop_at_s(self, arrival: Arrival) -> float:
        after = self._scenario.device_settings.drop_after
        return math.inf if after is None else arrival.at_s + after * arrival.deadline_s

    def _stop_attempt(self, effect: effects.StopAttempt) -> None:
        device = self._fleet.devices.get(effect.worker_id)
        if device is not None:
            for holder in self._fleet.devices.values() if self._scenario.even_split else (device,):
                holder.stop((effect.request_id, effect.fencing_token))

    def _score(self, effect: effects.Score) -> None:
        request = self._requests[effect.request_id]
        request.score(effect.fencing_token, self._scenario)
        scored = events.Scored(effect.request_id, effect.fencing_token, request.confidence)
        self._later(self._scenario.delays.score, scored, request, "score")

    def _commit_result(self, effect: effects.CommitResult) -> None:
        committed = events.ResultCommitted(effect.request_id, effect.fencing_token, won=True)
        self._later(self._scenario.delays.commit, committed)

    def _persist_end(self, effect: effects.PersistEnd) -> None:
        self._later(self._scenario.delays.end, events.EndPersisted(effect.request_id, won=True))


def _first(time_s: float, other: float | None) -> bool:
    return other is None or time_s <= other


def _nothing(effect: object) -> None:
    pass
