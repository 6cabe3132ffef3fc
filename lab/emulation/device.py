"""Emulate a device: a worker's queue, engine, finisher and model switch behind a clock and timers. The simulator runs
it in virtual time, an emulated worker on its event loop.

Step batching (ours): `policies.step_batching` chooses the next step's requests, as in the engine. Between two
changes of the batch its steps run as one segment, at the cost of one event per change instead of one per step. An
arrival or departure cuts the segment at the next step boundary. If a listener asks for each step, or groups take
turns, a segment is one step. Request batching (the servers of the papers): a batch runs from its first to its last
step, and arrivals wait.

Time is the device's own: a segment begins when the previous one was due to end, not when this process noticed it. A
busy machine therefore does not slow its emulated devices down, even with sixteen on two cores.
"""

import math
from collections.abc import Hashable, Sequence
from random import Random
from typing import Generic

from lab.emulation.adapter_costs import NO_ADAPTER_COSTS, AdapterCosts
from lab.emulation.adapters import PLAIN, AttemptAdapters, DeviceAdapters
from lab.emulation.cost_draws import draw
from lab.emulation.costs import ModelCosts
from lab.emulation.finisher import EmulatedFinisher
from lab.emulation.jobs import DeviceListener, DeviceSettings, EmulatedJob, Owner, Timers
from lab.emulation.segment import StepSegment
from lab.emulation.speed import STEADY, Slowness, SpeedCourse, steps_until
from lab.emulation.staging import Staging
from pentimento.policies.step_batching import GroupTurns, due_at, reserve_count

# Later than this the process was stopped, not busy, and so was its device.
STOPPED_S = 1.0


class EmulatedDevice(Generic[Owner]):
    """Emulate one worker's device. `costs` are those of the model that it holds; `assign` gives those of another one.
    `speed_changes` change the speed that the costs state."""

    def __init__(
        self,
        worker_id: str,
        kind: str,
        timers: Timers,
        listener: DeviceListener[Owner],
        random: Random,
        settings: DeviceSettings,
        costs: ModelCosts,
        max_batch: int,
        speed_changes: SpeedCourse = STEADY,
        adapter_costs: AdapterCosts = NO_ADAPTER_COSTS,
    ) -> None:
        self.worker_id = worker_id
        self.kind = kind
        self.generation = 1
        self.costs = costs
        self.max_batch = min(max_batch, costs.max_batch)
        self.draining = False
        self.retiring = False
        self.lost = False
        self.busy_s = 0.0
        self.adapters = DeviceAdapters(adapter_costs, random)
        self._timers = timers
        self._listener = listener
        self._random = random
        self._slowness = Slowness(speed_changes, random, timers.now)
        self._settings = settings
        self._turns = GroupTurns()
        self._jobs: dict[Owner, EmulatedJob[Owner]] = {}
        self._number = 0
        # The current segment, and the candidates for its batch. `_version` voids events scheduled before a cut.
        self._segment: StepSegment[Owner] | None = None
        self._candidates: list[EmulatedJob[Owner]] = []
        self._version = 0
        self._forming = False
        self._form_at_s = 0.0
        self._finisher = EmulatedFinisher(timers, self._finished)
        self._staging = Staging(timers, random, self._staged)
        # The model to hold, with its batches; the model being loaded; the attempts that need the current model.
        self._next: tuple[ModelCosts, int] | None = None
        self._loading: ModelCosts | None = None
        self._hold_count = 0

    @property
    def credit_count(self) -> int:
        if self.draining:
            return 0
        return (self._settings.credit_batches or 1) * self.max_batch

    @property
    def reserve_count(self) -> int:
        """Return the number of attempts that it accepts beyond a full batch if they are due before one in it; 0 under
        request batching."""
        return reserve_count(self.max_batch) if self.batches_steps and not self.draining else 0

    @property
    def batches_steps(self) -> bool:
        """Return whether places are given away one by one, and shortly before they are free, as workers do it."""
        return self._settings.steps and self._settings.credit_batches is None

    @property
    def model(self) -> str:
        """Return the model that it holds, or is about to hold."""
        return self._next[0].model if self._next is not None else self.costs.model

    @property
    def running_count(self) -> int:
        """Return the number of attempts that are being denoised."""
        return sum(job.running for job in self._jobs.values())

    @property
    def waiting_count(self) -> int:
        """Return the number of attempts that have not begun."""
        return sum(not job.running for job in self._jobs.values())

    def limit(self, key: Hashable) -> int:
        """Return how many images of that size share a step. Raises KeyError for an unmeasured size."""
        return min(self.max_batch, self.costs.limit(key))

    def start(
        self,
        owner: Owner,
        steps: int,
        deadline: float | None,
        drop_at_s: float = math.inf,
        key: Hashable = None,
        adapters: AttemptAdapters = PLAIN,
    ) -> None:
        """Accept an attempt of `steps` >= 1 denoising steps. It does not begin if it would end after `drop_at_s`, nor
        before its LoRAs are loaded, apart from the steps that may run without them. `key` None stands for the
        model's own image size."""
        now = self._timers.now
        self._number += 1
        urgency = (due_at(now, deadline, self._settings.aging_limit_s), self._number)
        job = self._jobs[owner] = EmulatedJob(owner, key, steps, urgency, now, drop_at_s, adapters)
        held_up_s = self.adapters.held_up_s(adapters.names, now, steps, self.costs.step(1, key).mean_s)
        if adapters.loras:
            self._listener.device_reports(self)
        if held_up_s > 0.0:
            job.ready_s = now + held_up_s
            self._timers.at(job.ready_s, self._join, job)
        else:
            self._join(job)

    def _join(self, job: EmulatedJob[Owner]) -> None:
        """Let an attempt begin, unless it has left."""
        if self._jobs.get(job.owner) is not job:
            return
        job.ready_s = 0.0
        if self._segment is None:
            self._form_later(self._timers.now)
        elif self._settings.steps and self._changes_batch(self._segment.batch, job):
            self._cut(self._segment)

    def stop(self, owner: Owner) -> None:
        """Stop an attempt, a running one at the next step boundary. Unknown owners are ignored."""
        job = self._jobs.get(owner)
        if job is None:
            return
        job.stopped = True
        if self._segment is None or job not in self._segment.batch:
            del self._jobs[owner]
            self._listener.job_stopped(self, job)
            self._load_when_empty()
        elif self._settings.steps:
            self._cut(self._segment)

    def hold(self) -> None:
        """Keep the current model until `release`; no other model loads before."""
        self._hold_count += 1

    def release(self) -> None:
        """End a `hold`."""
        self._hold_count -= 1
        self._load_when_empty()

    def assign(self, costs: ModelCosts, max_batch: int) -> None:
        """Hold this model after the current attempts end, with batches of at most `max_batch`; a model with a `swap` is
        read first, while further attempts are accepted. Assigning the current model cancels a switch before the device
        is empty."""
        before = (self.model, self.max_batch, self.draining)
        limit = max(1, min(max_batch, costs.max_batch))
        if costs.model == self.costs.model and self._loading is None:
            self._next, self.max_batch, self.draining = None, limit, False
        else:
            self._next = (costs, limit)
            self._staging.begin(costs)
            self.draining = self._staging.has(costs)
        if (self.model, self.max_batch, self.draining) != before:
            self._listener.device_reports(self)
        self._load_when_empty()

    def lose(self) -> list[EmulatedJob[Owner]]:
        """Lose all attempts, as when the process dies, and return them. The listener receives no more events about
        them."""
        lost = [*self._jobs.values(), *self._finisher.jobs]
        self.lost = True
        self._jobs.clear()
        self._segment = None
        self._version += 1
        self._finisher.forget()
        self._loading = None
        self._staging.forget()
        self.adapters.forget()
        return lost

    @property
    def is_empty(self) -> bool:
        """Return whether no attempt runs, waits or is being finished."""
        return not self._jobs and self._finisher.idle

    def retire(self) -> None:
        """Take no more attempts until `revive`, as after SIGTERM; the present ones end."""
        self.retiring = self.draining = True
        self._listener.device_reports(self)

    def revive(self) -> None:
        """Start a new process of the same name, with the model that was last wanted."""
        self.lost = self.retiring = False
        self.generation += 1
        self.draining = False
        if self._next is not None:
            (self.costs, self.max_batch), self._next = self._next, None
        self._listener.device_reports(self)

    def _changes_batch(self, batch: Sequence[EmulatedJob[Owner]], job: EmulatedJob[Owner]) -> bool:
        key = batch[0].key
        if job.key != key or len(batch) < self.limit(key):
            return True
        return self._settings.preempt and job.urgency < max(member.urgency for member in batch)

    def _form_later(self, began_s: float) -> None:
        """Form a batch after all other events of this instant, so that requests sent together are batched together."""
        if not self._forming:
            self._forming, self._form_at_s = True, began_s
            self._timers.at(began_s, self._form)

    def _form_next(self, began_s: float) -> None:
        """Form the batch at once if the listener asks for each step: on an event loop another timer per step costs more
        than the step. A batch of whole requests waits for requests that arrive at the same instant."""
        if self._settings.each_step and self._settings.steps:
            self._form_at_s = began_s
            self._form(None)
        else:
            self._form_later(began_s)

    def _form(self, _: None) -> None:
        self._forming = False
        if self._segment is not None or not self._jobs:
            return
        batch = self._next_batch()
        if batch:
            self._begin(batch, self._prepare(batch, self._form_at_s))
        else:
            self._load_when_empty()

    def _next_batch(self) -> list[EmulatedJob[Owner]]:
        """Choose the next batch; later requests take the places of dropped ones."""
        while self._jobs:
            self._candidates = [job for job in self._jobs.values() if not job.ready_s]
            batch = self._turns.choose(self._candidates, self.limit, preempt=self._settings.preempt)
            late = self._late(batch) if batch and self._settings.drop_after is not None else []
            if not late:
                return batch
            for job in late:
                del self._jobs[job.owner]
                self._listener.job_dropped(self, job)
        return []

    def _late(self, batch: list[EmulatedJob[Owner]]) -> list[EmulatedJob[Owner]]:
        step_s = self.costs.step(len(batch), batch[0].key).mean_s
        ends_s = self._timers.now + max(job.left for job in batch) * step_s
        return [job for job in batch if ends_s > job.drop_at_s and not job.running]

    def _prepare(self, batch: Sequence[EmulatedJob[Owner]], began_s: float) -> float:
        """Prepare new attempts one after the other, and return when the batch's first step begins. An attempt that
        arrived while the step before was overdue waited for nothing: a stage does not end before it began."""
        at_s = began_s
        for job in batch:
            if not job.running:
                seconds = draw(self.costs.prepare, self._random)
                job.running, job.began_s, job.device_s = True, max(at_s, job.arrived_s), seconds
                at_s += seconds
                job.prepared_s = max(at_s, job.arrived_s)
                self._listener.job_began(self, job)
        patch_s = self.adapters.settle(job.adapters.loras for job in batch)
        for job in batch if patch_s else ():
            job.device_s += patch_s / len(batch)
        self.busy_s += at_s + patch_s - began_s
        return at_s + patch_s

    def _begin(self, batch: Sequence[EmulatedJob[Owner]], began_s: float) -> None:
        """Begin a segment."""
        cost, wait_s = self.costs.step(len(batch), batch[0].key), self.adapters.wait_s(job.adapters for job in batch)
        steps, slowness = self._length(batch, began_s, cost.mean_s + wait_s)
        step_s = slowness * draw(cost, self._random, steps) + wait_s
        self._segment = StepSegment(batch, began_s, step_s, steps)
        self._note_end(self._segment)

    def _length(self, batch: Sequence[EmulatedJob[Owner]], began_s: float, mean_s: float) -> tuple[int, float]:
        """Return the steps of the segment, and the factor of their time."""
        if self._settings.each_step:
            return 1, self._slowness.at(began_s)
        if not self._settings.steps:
            steps = max(job.left for job in batch)
            return steps, self._slowness.mean(began_s, steps * mean_s)
        slowness = self._slowness.at(began_s)
        if len(batch) < len(self._candidates) and any(job.key != batch[0].key for job in self._candidates):
            return 1, slowness
        steps = min(job.left for job in batch)
        if self._slowness.until < math.inf:
            steps = min(steps, steps_until(self._slowness.until - began_s, slowness * mean_s))
        return steps, slowness

    def _note_end(self, segment: StepSegment[Owner]) -> None:
        self._version += 1
        for at_s, left in segment.yields() if self.batches_steps else ():
            self._timers.at(at_s, self._yield, (self._version, segment, left))
        self._timers.at(segment.due_s, self._end, (self._version, segment))

    def _yield(self, noted: tuple[int, StepSegment[Owner], int]) -> None:
        version, segment, left = noted
        ending = [job for job in segment.batch if job.left == left and not job.yielded]
        # The listener may send another attempt here, which cuts the segment.
        for job in ending if version == self._version else ():
            self._yield_place(job)

    def _yield_place(self, job: EmulatedJob[Owner]) -> None:
        job.yielded = True
        self._listener.job_yielded(self, job)

    def _cut(self, segment: StepSegment[Owner]) -> None:
        if segment.cut(self._timers.now):
            self._note_end(segment)

    def _end(self, noted: tuple[int, StepSegment[Owner]]) -> None:
        version, segment = noted
        if version != self._version:
            return
        self._segment = None
        batch, now, due_s = segment.batch, self._timers.now, segment.due_s
        ended_s = due_s if now - due_s < STOPPED_S else now
        self.busy_s += segment.seconds
        self._turns.ran(batch[0].key, segment.step_s, self._candidates, segment.step_count)
        segment.end()
        if self._settings.each_step:
            self._listener.batch_stepped(batch, segment.seconds, max(now - due_s, 0.0))
            if not self._settings.steps and any(job.left for job in batch):
                return self._begin(batch, ended_s)
        for job in batch:
            if job.stopped:
                del self._jobs[job.owner]
                self._listener.job_stopped(self, job)
            elif job.left == 0:
                del self._jobs[job.owner]
                self._finish(job, ended_s)
        if self._jobs:
            self._form_next(ended_s)
        self._load_when_empty()

    def _finish(self, job: EmulatedJob[Owner], ended_s: float) -> None:
        if self.batches_steps and not job.yielded:
            self._yield_place(job)
        job.denoised_s = max(ended_s, job.prepared_s)
        job.finish_s = draw(self.costs.finish, self._random)
        self._finisher.take(job)

    def _finished(self, job: EmulatedJob[Owner]) -> None:
        self._listener.job_finished(self, job)
        self._load_when_empty()

    def _staged(self) -> None:
        if self._next is not None and not self.lost:
            self.assign(*self._next)

    def _load_when_empty(self) -> None:
        if self._next is None or not self.draining or self._loading is not None or self.lost:
            return
        if not self.is_empty or self._hold_count:
            return
        self._loading = self._next[0]
        self._staging.place(self._loading, self._loaded)

    def _loaded(self) -> None:
        """Hold the loaded model. Load another one that was assigned since; serve until it is staged."""
        assert self._loading is not None and self._next is not None
        self.costs, self._loading = self._loading, None
        self.adapters.forget()
        self.generation += 1
        if self._next[0].model == self.costs.model:
            self.max_batch, self._next, self.draining = self._next[1], None, False
        elif self.draining:
            return self._load_when_empty()
        self._listener.device_reports(self)
