"""Carry the events of an emulated device to its attempts, on the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lab.emulation.attempt_steps import AttemptSteps
from lab.emulation.device import EmulatedDevice
from lab.emulation.emulated_worker.images import stand_in_latent
from lab.emulation.jobs import EmulatedJob
from pentimento.domain.errors import Cancelled, DeadlineExceeded, PentimentoError
from pentimento.domain.execution import ExecuteEvent, PlaceYielded, Started, StepProgress
from pentimento.service.credits import BusyMeter
from services.unet_worker import metrics
from services.unet_worker.attempts.cache_objects import Uploads
from services.unet_worker.attempts.order import ExecuteOrder, ProgressPace


class LoopTimers:
    """Use the event loop as a device's clock and timers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    @property
    def now(self) -> float:
        return self._loop.time()

    def at(self, time_s: float, action: Callable[[Any], None], argument: Any = None) -> None:
        self._loop.call_at(time_s, action, argument)


class JobBridge:
    """Report the events of one attempt. Progress is thinned out, as the real worker's is."""

    def __init__(
        self,
        worker_id: str,
        order: ExecuteOrder,
        first_step: int,
        emit: Callable[[ExecuteEvent], None],
        uploads: Uploads | None,
        progress: ProgressPace,
    ) -> None:
        self._worker_id = worker_id
        self._emit = emit
        self._uploads = uploads
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._size = (order.spec.width_px, order.spec.height_px)
        step_count = order.spec.num_inference_steps
        self._steps = AttemptSteps(min(first_step, step_count - 1), step_count, order.route.thinned_steps)
        self.done: asyncio.Future[EmulatedJob[JobBridge]] = self._loop.create_future()

    @property
    def first_step(self) -> int:
        return self._steps.first_step

    @property
    def steps_run(self) -> int:
        return self._steps.taken_count

    @property
    def thinned_steps(self) -> tuple[int, ...]:
        return self._steps.thinned_steps

    def thin(self, steps: tuple[int, ...]) -> None:
        """Take only these steps, from the next step boundary."""
        self._steps.thin(steps)

    def left_after(self, steps_left: int) -> int:
        """Apply a requested thinning between two steps, and return how many steps remain."""
        return self._steps.left_after(steps_left)

    def began(self) -> None:
        self._emit(Started(self._worker_id, self._steps.first_step, self._steps.step_count))

    def yielded(self) -> None:
        self._emit(PlaceYielded())

    def stepped(self, steps_left: int) -> None:
        step, step_count, now = self._steps.reached(steps_left), self._steps.step_count, self._loop.time()
        is_thinned = self._steps.is_thinned_at(step)
        if self._uploads is not None and steps_left and step in self._uploads.steps and not is_thinned:
            self._uploads.add_latent(step, 1.0 - step / step_count, lambda: stand_in_latent(*self._size))
        if self._progress.sends(step, step_count, now):
            self._emit(StepProgress(step, step_count))

    def finished(self, job: "EmulatedJob[JobBridge]") -> None:
        if not self.done.done():
            self.done.set_result(job)

    def failed(self, error: PentimentoError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


Device = EmulatedDevice[JobBridge]
Job = EmulatedJob[JobBridge]


class DeviceNews:
    """Pass a device's events to its attempts and the metrics. `changed` is called when it holds another model, or takes
    or runs another number of attempts."""

    def __init__(self, busy: BusyMeter, changed: Callable[[], None]) -> None:
        self._busy = busy
        self._changed = changed

    def job_began(self, device: Device, job: Job) -> None:
        job.owner.began()
        self._changed()

    def job_yielded(self, device: Device, job: Job) -> None:
        job.owner.yielded()

    def job_finished(self, device: Device, job: Job) -> None:
        job.owner.finished(job)

    def job_stopped(self, device: Device, job: Job) -> None:
        job.owner.failed(Cancelled("CANCELLED", "the attempt was stopped"))

    def job_dropped(self, device: Device, job: Job) -> None:
        job.owner.failed(DeadlineExceeded("DEADLINE_EXCEEDED", "it would have ended after its deadline"))

    def batch_stepped(self, batch: Sequence[Job], seconds: float, late_s: float) -> None:
        metrics.STEP_SECONDS.observe(seconds)
        metrics.BATCH.observe(len(batch))
        metrics.LOOP_LAG_SECONDS.observe(late_s)
        self._busy.add(seconds)
        for job in batch:
            if not job.stopped:
                job.owner.stepped(job.left)
                job.left = job.owner.left_after(job.left)

    def device_reports(self, device: Device) -> None:
        self._changed()
