"""Run one attempt from order to outcome on any device: within its deadline, stored under its grant, accounted for."""

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Protocol

from pentimento.domain.errors import DEADLINE_PASSED, DeadlineExceeded
from pentimento.domain.execution import AttemptResult, ExecuteEvent
from pentimento.domain.generation import CapturedEntries, StageTiming
from pentimento.stores.objects import ObjectStore
from pentimento.telemetry.tracing import record_stage
from pentimento.wire.tensors import WireTensor
from services.unet_worker import metrics
from services.unet_worker.attempts.cache_objects import Uploads
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder

# A stage, and when it began and ended, in seconds on one clock.
Mark = tuple[str, float, float]


def stage_timings(accepted_at: float, marks: Iterable[Mark]) -> tuple[StageTiming, ...]:
    """Return the stages in order, in milliseconds since the order arrived, and record them in the request's trace."""
    marks = tuple(marks)
    for mark in marks:
        record_stage(*mark)
    return tuple(StageTiming(name, (since - accepted_at) * 1e3, (until - since) * 1e3) for name, since, until in marks)


@dataclass(frozen=True)
class AttemptImage:
    """Hold a result without stored objects; its timings end at `ended_at`, in seconds on the monotonic clock. A cache
    stores `png`, regardless of the image's format."""

    result: AttemptResult
    png: bytes = field(repr=False)
    ended_at: float
    final_latents: WireTensor | None = None


class ModelRunner(Protocol):
    """Generate images with one model on one device."""

    async def generate(
        self,
        order: ExecuteOrder,
        uploads: Uploads | None,
        emit: Callable[[ExecuteEvent], None],
        accepted_at: float,
        deadline: float | None,
    ) -> AttemptImage:
        """Emit Started and StepProgress, and put captured latents into `uploads`. Times are on the monotonic clock.
        Raises domain errors; cancelling stops the work at the next step."""


class AttemptRunner:
    """Run attempts on a model runner. Their objects are stored in `objects`, on `store_threads`; `ended` is called when
    an attempt is over."""

    def __init__(
        self,
        model_runner: ModelRunner,
        objects: ObjectStore,
        store_threads: Executor,
        upload_timeout_s: float,
        ended: Callable[[], None],
    ) -> None:
        self._model_runner = model_runner
        self._objects = objects
        self._store_threads = store_threads
        self._upload_timeout_s = upload_timeout_s
        self._ended = ended
        self.running_count = 0

    async def run(self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None]) -> AttemptOutcome:
        """Emit Started and StepProgress, and return the outcome. Raises domain errors; cancelling stops the device's
        work at its next step."""
        accepted_at = time.monotonic()
        remaining_s = order.deadline_remaining_ms / 1000 if order.deadline_remaining_ms else None
        deadline = None if remaining_s is None else accepted_at + remaining_s
        self.running_count += 1
        try:
            async with asyncio.timeout(remaining_s):
                return await self._run(order, emit, accepted_at, deadline)
        except TimeoutError:
            raise DeadlineExceeded("DEADLINE_EXCEEDED", DEADLINE_PASSED) from None
        finally:
            self.running_count -= 1
            self._ended()

    async def _run(
        self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None], accepted_at: float, deadline: float | None
    ) -> AttemptOutcome:
        grant = order.cache_grant
        uploads = Uploads(grant, self._objects, self._store_threads) if grant is not None else None
        try:
            made = await self._model_runner.generate(order, uploads, emit, accepted_at, deadline)
            captured, upload_notes = await self._store(uploads, made, order.cache_thinned_picture)
        finally:
            if uploads is not None:
                uploads.close()
        stored = stage_timings(accepted_at, [("store", made.ended_at, time.monotonic())])
        result = replace(
            made.result,
            captured=captured,
            timings=(*made.result.timings, *stored),
            notes=(*order.notes, *made.result.notes, *upload_notes),
        )
        for timing in result.timings:
            metrics.STAGE_SECONDS.labels(timing.stage).observe(timing.duration_ms / 1e3)
        metrics.SAVED_STEPS.inc(result.steps_saved)
        metrics.DEVICE_SECONDS.observe(result.device_seconds)
        return AttemptOutcome(result, made.final_latents)

    async def _store(
        self, uploads: Uploads | None, made: AttemptImage, cache_thinned: bool
    ) -> tuple[CapturedEntries, tuple[str, ...]]:
        """Store the attempt's objects for the cache. An image of a request with skipped steps is stored only if the
        order states that it lost little: every later image made from it inherits the loss."""
        if uploads is None:
            return CapturedEntries(""), ()
        if cache_thinned or not made.result.thinned_steps:
            uploads.add_image(made.png)
        return await uploads.collect(self._upload_timeout_s)
