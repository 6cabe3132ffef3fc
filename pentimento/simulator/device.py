"""A simulated device: a worker's queue and engine in virtual time, at the cost of an event a change and not a step.

Batching at steps (ours): whose step is next is `policies.step_batching`, as in the engine. Between two changes of the
batch its steps run as one segment, cut at the next step boundary when somebody comes or goes. Batching of requests
(the servers of the papers): a batch runs from its first to its last step; whoever comes meanwhile waits.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pentimento.dataplane.events import AttemptKey
from pentimento.devices.speed import STEADY, Slowness, SpeedCourse
from pentimento.policies.step_batching import Urgency, choose_batch, due_at, reserve_count, yielding_steps
from pentimento.simulator.agenda import Agenda
from pentimento.simulator.costs import ModelCosts


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """One attempt on a device. `left` are denoising steps."""

    attempt: AttemptKey
    left: int
    urgency: Urgency
    arrived_s: float
    drop_at_s: float = math.inf
    key: str = ""
    running: bool = False
    stopped: bool = False
    yielded: bool = False
    began_s: float = 0.0
    device_s: float = 0.0


class DeviceListener(Protocol):
    """Who hears of a device. Called at the virtual time at which it happens."""

    def job_began(self, device: "Device", job: SimulatedJob) -> None: ...

    def job_yielded(self, device: "Device", job: SimulatedJob) -> None:
        """Its place is about to be free."""
        ...

    def job_finished(self, device: "Device", job: SimulatedJob) -> None: ...

    def job_stopped(self, device: "Device", job: SimulatedJob) -> None: ...

    def job_dropped(self, device: "Device", job: SimulatedJob) -> None:
        """Its turn came too late for its deadline."""
        ...

    def device_reports(self, device: "Device") -> None:
        """It holds another model, or takes another number of attempts."""
        ...


@dataclass(frozen=True)
class DeviceSettings:
    """`steps`: join and leave at any step; otherwise whole requests are batched. A device holds `credit_batches`
    batches of attempts; where that is None as a worker does, a batch, and for each picture that is about to end another
    one. `aging_limit_s` as in the engine.
    `drop_after`: what the batch that is about to begin would end later than so many SLOs after it came is given up
    (DiffServe's workers, whose queues are their own); None for never."""

    steps: bool = True
    preempt: bool = True
    credit_batches: int | None = None
    aging_limit_s: float = 30.0
    drop_after: float | None = None


class Device:
    """One worker. `costs` are those of the model that it holds, None while it loads one. Speed is in the costs."""

    def __init__(
        self,
        worker_id: str,
        kind: str,
        agenda: Agenda,
        listener: DeviceListener,
        random: Random,
        settings: DeviceSettings,
        costs: ModelCosts,
        max_batch: int,
        speed_changes: SpeedCourse = STEADY,
    ) -> None:
        self.worker_id = worker_id
        self.kind = kind
        self.generation = 1
        self.costs = costs
        self.max_batch = min(max_batch, costs.max_batch)
        self.draining = False
        self.lost = False
        self.busy_s = 0.0
        self._agenda = agenda
        self._listener = listener
        self._random = random
        self._slowness = Slowness(speed_changes, random, agenda.now)
        self._settings = settings
        self._choose: Callable[..., list[SimulatedJob]] = choose_batch
        self._jobs: dict[AttemptKey, SimulatedJob] = {}
        self._next_costs: ModelCosts | None = None
        self._number = 0
        # The segment under way: its batch, when its first step began, seconds a step, steps; `_version` voids the ends
        # that were noted before it was cut.
        self._batch: list[SimulatedJob] = []
        self._began_s = 0.0
        self._step_s = 0.0
        self._step_count = 0
        self._version = 0
        self._forming = False
        self._finisher_free_s = 0.0
        self._finishing_count = 0
        self._loading = False
        # Counts the processes that bore this name: what an earlier one had under way is lost.
        self._incarnation = 0

    @property
    def credit_count(self) -> int:
        if self.draining:
            return 0
        return (self._settings.credit_batches or 1) * self.max_batch

    @property
    def reserve_count(self) -> int:
        """None where whole requests are batched: nobody there steps back."""
        as_worker = self._settings.steps and self._settings.credit_batches is None and not self.draining
        return reserve_count(self.max_batch) if as_worker else 0

    @property
    def model(self) -> str:
        """The one it holds, or is about to hold."""
        return (self._next_costs or self.costs).model

    @property
    def job_count(self) -> int:
        return len(self._jobs)

    @property
    def waiting_count(self) -> int:
        """Attempts that it has not begun with."""
        return sum(not job.running for job in self._jobs.values())

    def start(self, attempt: AttemptKey, steps: int, deadline: float, drop_at_s: float = math.inf) -> None:
        """Changes state: an attempt at `steps` denoising steps comes in; it is not begun with if it would end after
        `drop_at_s`."""
        now = self._agenda.now
        self._number += 1
        urgency = (due_at(now, deadline, self._settings.aging_limit_s), self._number)
        job = self._jobs[attempt] = SimulatedJob(attempt, steps, urgency, now, drop_at_s)
        if not self._batch:
            self._form_later()
        elif self._settings.steps and self._changes_batch(job):
            self._cut()

    def stop(self, attempt: AttemptKey) -> None:
        """Changes state: what runs stops at the next boundary; an attempt that is not here is not missed."""
        job = self._jobs.get(attempt)
        if job is None:
            return
        job.stopped = True
        if job not in self._batch:
            self._leave(job)
            self._listener.job_stopped(self, job)
            self._load_when_empty()
        elif self._settings.steps:
            self._cut()

    def assign(self, costs: ModelCosts, max_batch: int) -> None:
        """Changes state: hold this model, once what is here is done, with batches of at most that many."""
        limit = max(1, min(max_batch, costs.max_batch))
        if costs.model == self.model:
            if limit != self.max_batch:
                self.max_batch = limit
                if not self.draining:
                    self._listener.device_reports(self)
            return
        self._next_costs, self.max_batch, self.draining = costs, limit, True
        if costs.model == self.costs.model and not self._loading:
            self._next_costs, self.draining = None, False
        self._listener.device_reports(self)
        self._load_when_empty()

    def lose(self) -> None:
        """Changes state: the process dies; nobody hears of its attempts again."""
        self.lost = True
        self._jobs.clear()
        self._batch = []
        self._version += 1
        self._incarnation += 1
        self._finishing_count = 0
        self._loading = False

    def revive(self) -> None:
        """Changes state: a new process of the same name, with the same model."""
        self.lost = False
        self.generation += 1
        self.draining = False
        if self._next_costs is not None:
            self.costs, self._next_costs = self._next_costs, None
        self._listener.device_reports(self)

    def _changes_batch(self, job: SimulatedJob) -> bool:
        if len(self._batch) < self.max_batch:
            return True
        return self._settings.preempt and job.urgency < max(member.urgency for member in self._batch)

    def _form_later(self) -> None:
        """After everything else of this instant, so that requests sent together are batched together."""
        if not self._forming:
            self._forming = True
            self._agenda.at(self._agenda.now, self._form)

    def _form(self, _: None = None) -> None:
        self._forming = False
        if self._batch or not self._jobs:
            return
        batch = self._next_batch()
        if not batch:
            return self._load_when_empty()
        began_s = self._agenda.now + self._prepare(batch)
        left = [job.left for job in batch]
        if self._settings.steps:
            steps, slowness = min(left), self._slowness.at(began_s)
            if self._slowness.until < math.inf:
                steps = min(steps, self._steps_until(self._slowness.until - began_s, slowness, len(batch)))
        else:
            steps = max(left)
            slowness = self._slowness.mean(began_s, steps * self.costs.step(len(batch)).mean_s)
        self._batch, self._began_s, self._step_count = batch, began_s, steps
        self._step_s = slowness * self._segment_s(len(batch), steps)
        self._note_end()

    def _next_batch(self) -> list[SimulatedJob]:
        """The places of those that are dropped are taken by whoever comes after them."""
        while self._jobs:
            batch = self._choose(list(self._jobs.values()), self._limit, preempt=self._settings.preempt)
            late = [] if self._settings.drop_after is None else self._late(batch)
            if not late:
                return batch
            for job in late:
                self._leave(job)
                self._listener.job_dropped(self, job)
        return []

    def _late(self, batch: list[SimulatedJob]) -> list[SimulatedJob]:
        ends_s = self._agenda.now + max(job.left for job in batch) * self.costs.step(len(batch)).mean_s
        return [job for job in batch if ends_s > job.drop_at_s and not job.running]

    def _limit(self, key: str) -> int:
        return self.max_batch

    def _prepare(self, batch: list[SimulatedJob]) -> float:
        """Seconds that newcomers take before the batch's first step."""
        total = 0.0
        for job in batch:
            if not job.running:
                job.running, job.began_s = True, self._agenda.now
                seconds = self.costs.prepare.draw(self._random)
                job.device_s += seconds
                total += seconds
                self._listener.job_began(self, job)
        self.busy_s += total
        return total

    def _segment_s(self, batch_size: int, steps: int) -> float:
        """Seconds a step over a segment of `steps` independent ones."""
        if steps == 0:
            return 0.0
        cost = self.costs.step(batch_size)
        return type(cost)(cost.mean_s, cost.variance_s2 / steps, 1).draw(self._random)

    def _steps_until(self, seconds: float, slowness: float, batch_size: int) -> int:
        """Those that begin within so many seconds, at least one."""
        step_s = slowness * self.costs.step(batch_size).mean_s
        return max(math.ceil(seconds / step_s), 1) if step_s > 0.0 else sys.maxsize

    def _note_end(self) -> None:
        self._version += 1
        if self._settings.steps and self._settings.credit_batches is None:
            self._note_yields()
        self._agenda.at(self._began_s + self._step_count * self._step_s, self._end, self._version)

    def _note_yields(self) -> None:
        """Whoever ends with this segment says so a few steps before, but not before it has taken a step."""
        if any(job.left == self._step_count and not job.yielded for job in self._batch):
            step = max(self._step_count - yielding_steps(self._step_s), 1)
            at_s = self._began_s + min(step, self._step_count) * self._step_s
            self._agenda.at(max(at_s, self._agenda.now), self._yield, self._version)

    def _yield(self, version: int) -> None:
        if version != self._version:
            return
        # Whoever hears of it may send another one, and cut the segment.
        for job in [job for job in self._batch if job.left == self._step_count and not job.yielded]:
            job.yielded = True
            self._listener.job_yielded(self, job)

    def _cut(self) -> None:
        """End the segment at the next step boundary; one that has not begun takes its first step."""
        elapsed = self._agenda.now - self._began_s
        done = max(1, math.ceil(elapsed / self._step_s - 1e-9)) if self._step_s > 0 else self._step_count
        if done < self._step_count:
            self._step_count = done
            self._note_end()

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        batch, self._batch = self._batch, []
        seconds = self._step_count * self._step_s
        self.busy_s += seconds
        for job in batch:
            job.left = max(0, job.left - self._step_count)
            job.device_s += seconds / len(batch)
            if job.stopped:
                self._leave(job)
                self._listener.job_stopped(self, job)
            elif job.left == 0:
                self._leave(job)
                self._finish(job)
        if self._jobs:
            self._form_later()
        self._load_when_empty()

    def _finish(self, job: SimulatedJob) -> None:
        """Decoded and encoded one after the other, beside the steps of others."""
        seconds = self.costs.finish.draw(self._random)
        if seconds == 0.0:
            self._listener.job_finished(self, job)
            return
        self._finishing_count += 1
        self._finisher_free_s = max(self._finisher_free_s, self._agenda.now) + seconds
        self._agenda.at(self._finisher_free_s, self._finished, (job, self._incarnation))

    def _finished(self, finished: tuple[SimulatedJob, int]) -> None:
        job, incarnation = finished
        if incarnation == self._incarnation:
            self._finishing_count -= 1
            self._listener.job_finished(self, job)
            self._load_when_empty()

    def _leave(self, job: SimulatedJob) -> None:
        del self._jobs[job.attempt]

    def _load_when_empty(self) -> None:
        if self._next_costs is None or self._loading or self._jobs or self._batch or self._finishing_count:
            return
        self._loading = True
        self._agenda.at(self._agenda.now + self._next_costs.load.draw(self._random), self._loaded, self._incarnation)

    def _loaded(self, incarnation: int) -> None:
        if incarnation != self._incarnation or self._next_costs is None:
            return
        self._loading = False
        self.costs, self._next_costs = self._next_costs, None
        self.max_batch = min(self.max_batch, self.costs.max_batch)
        self.generation += 1
        self.draining = False
        self._listener.device_reports(self)
