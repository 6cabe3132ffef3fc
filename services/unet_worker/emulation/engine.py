"""An engine without a model: whose step is next is decided as in the real one, and a step takes the time that was
profiled.

Time is the device's own: a step begins when the one before it was due to end, not when this process got round to
noticing, so that a busy machine does not slow its emulated devices down. Sixteen of them share two cores.
"""

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from pentimento.devices.profile import Cost
from pentimento.devices.speed import STEADY, Slowness, SpeedCourse
from pentimento.domain.errors import PentimentoError
from pentimento.policies.step_batching import GroupTurns, Urgency, due_at

# Later than this the process was stopped, not busy, and so was its device.
STOPPED_S = 1.0


class Timer(Protocol):
    """Seconds on a monotonic clock; an asyncio event loop is one."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[..., Any]) -> object: ...


@dataclass(frozen=True)
class DeviceCosts:
    """Of one model on one device: `steps[key][n - 1]` is a denoising step of n pictures of that size and guidance."""

    steps: Mapping[Hashable, tuple[Cost, ...]]
    prepare: Cost

    def limit(self, key: Hashable) -> int:
        return len(self.steps[key])


@dataclass(frozen=True)
class EmulatedEngineSettings:
    """As the real engine's. `step_batching` off: a batch runs from its first step to its last, and nobody joins it.
    `speed_changes` of the device."""

    aging_limit_s: float = 30.0
    preempt: bool = True
    step_batching: bool = True
    speed_changes: SpeedCourse = STEADY


class JobListener(Protocol):
    """Hears of one picture; must not block. Ends with `finished` or `failed`, once."""

    def started(self, first_step: int, step_count: int) -> None: ...

    def stepped(self, step: int) -> None: ...

    def finished(self, job: "EmulatedJob") -> None: ...

    def failed(self, error: PentimentoError) -> None: ...


@dataclass(eq=False)
class EmulatedJob:
    """One picture; times in seconds on the timer's clock, as the device sees them."""

    number: int
    key: Hashable
    urgency: Urgency
    first_step: int
    step_count: int
    listener: JobListener
    queued_at: float
    running: bool = False
    step: int = 0
    started_at: float = 0.0
    prepared_at: float = 0.0
    finished_at: float = 0.0
    device_s: float = 0.0
    stop_error: PentimentoError | None = None


@dataclass
class _Step:
    """The step under way."""

    jobs: list[EmulatedJob]
    began_at: float
    ends_at: float
    newcomers: list[tuple[EmulatedJob, float]] = field(default_factory=list)


class EmulatedEngine:
    """On the timer's thread only. `ran` hears of every step: pictures in it, its seconds, and how many seconds too late
    its end was noticed."""

    def __init__(
        self,
        costs: DeviceCosts,
        settings: EmulatedEngineSettings,
        source: random.Random,
        timer: Timer,
        ran: Callable[[int, float, float], None] = lambda request_count, seconds, late_s: None,
    ) -> None:
        self.costs = costs
        self._settings = settings
        self._source = source
        self._slowness = Slowness(settings.speed_changes, source, timer.time())
        self._timer = timer
        self._ran = ran
        self._numbers = count()
        self._turns = GroupTurns()
        self._jobs: dict[int, EmulatedJob] = {}
        self._step: _Step | None = None

    @property
    def running_count(self) -> int:
        return sum(job.running for job in self._jobs.values())

    @property
    def waiting_count(self) -> int:
        return len(self._jobs) - self.running_count

    def submit(
        self, key: Hashable, first_step: int, step_count: int, deadline: float | None, listener: JobListener
    ) -> EmulatedJob:
        """Queues a picture of `step_count` steps that enters at `first_step`; `key` must have costs."""
        now, number = self._timer.time(), next(self._numbers)
        urgency = (due_at(now, deadline, self._settings.aging_limit_s), number)
        job = EmulatedJob(number, key, urgency, first_step, step_count, listener, now, step=first_step)
        self._jobs[number] = job
        if self._step is None:
            self._begin_step(now)
        return job

    def stop(self, job: EmulatedJob, error: PentimentoError) -> None:
        """At the next step boundary; at once where it is not being denoised. Harmless when it is over."""
        job.stop_error = job.stop_error or error
        if self._step is None or job not in self._step.jobs:
            self._drop_stopped()

    def fail_all(self, error: PentimentoError) -> None:
        for job in list(self._jobs.values()):
            job.stop_error = job.stop_error or error
        self._drop_stopped()

    def _begin_step(self, began_at: float) -> None:
        jobs = self._chosen()
        if not jobs:
            self._step = None
            return
        newcomers = [(job, self.costs.prepare.draw(self._source)) for job in jobs if not job.running]
        step_s = self.costs.steps[jobs[0].key][len(jobs) - 1].draw(self._source)
        prepared_at = began_at + sum(seconds for _, seconds in newcomers)
        ends_at = prepared_at + self._slowness.at(prepared_at) * step_s
        self._step = _Step(jobs, began_at, ends_at, newcomers)
        self._prepare(self._step)
        self._timer.call_at(ends_at, self._end_step)

    def _chosen(self) -> list[EmulatedJob]:
        running = [job for job in self._jobs.values() if job.running]
        if running and not self._settings.step_batching:
            return running
        return self._turns.choose(list(self._jobs.values()), self.costs.limit, preempt=self._settings.preempt)

    def _prepare(self, step: _Step) -> None:
        """Newcomers are prepared one after the other, as on the engine's thread, before the step they join. Who came
        while that step was overdue waited for nothing: a stage does not end before it began."""
        at = step.began_at
        for job, seconds in step.newcomers:
            job.running, job.started_at, job.device_s = True, max(at, job.queued_at), seconds
            at += seconds
            job.prepared_at = max(at, job.queued_at)
            job.listener.started(job.first_step, job.step_count)

    def _end_step(self) -> None:
        step, now = self._step, self._timer.time()
        assert step is not None
        ended_at = step.ends_at if now - step.ends_at < STOPPED_S else now
        seconds = step.ends_at - step.began_at - sum(prepared for _, prepared in step.newcomers)
        self._ran(len(step.jobs), seconds, max(now - step.ends_at, 0.0))
        self._step = None
        self._turns.ran(step.jobs[0].key, seconds, list(self._jobs.values()))
        for job in step.jobs:
            self._advance(job, seconds / len(step.jobs), ended_at)
        self._drop_stopped()
        # Whoever was told may have handed in more: then the next step has begun already.
        if self._step is None:
            self._begin_step(ended_at)

    def _advance(self, job: EmulatedJob, share_s: float, ended_at: float) -> None:
        job.step += 1
        job.device_s += share_s
        if job.stop_error is not None:
            return
        if job.step >= job.step_count:
            job.finished_at = max(ended_at, job.prepared_at)
            del self._jobs[job.number]
            job.listener.finished(job)
        else:
            job.listener.stepped(job.step)

    def _drop_stopped(self) -> None:
        under_way: Sequence[EmulatedJob] = self._step.jobs if self._step is not None else ()
        for job in list(self._jobs.values()):
            if job.stop_error is not None and job not in under_way:
                del self._jobs[job.number]
                job.listener.failed(job.stop_error)
