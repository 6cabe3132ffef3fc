"""Run one attempt from order to outcome on any device: within its deadline, stored under its grant, accounted for."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from pentimento.domain.errors import DEADLINE_PASSED, DeadlineExceeded
from pentimento.domain.execution import AttemptResult, ExecuteEvent
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import CapturedEntries
from pentimento.stores.objects import ObjectStore
from pentimento.wire.tensors import WireTensor
from services.unet_worker.attempts.accounts import Mark, count_result, stage_timings
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder
from services.unet_worker.cache.uploads import Uploads


@dataclass(frozen=True)
class PaintedPicture:
    """Hold a generated image. A cache stores `png`, regardless of `image`'s format. `marks` are the stages from the
    order's arrival to `ended_at`, in seconds on the monotonic clock. `steps_saved` counts only steps that the cache
    saved; `bad_donor_reason` is set if a donor is to blame; `lora_patch_step` is the first step run with the request's
    LoRAs; `thinned_steps` are the steps run if some were skipped."""

    held: HeldModel
    image: bytes = field(repr=False)
    digest: str
    png: bytes = field(repr=False)
    marks: tuple[Mark, ...]
    ended_at: float
    steps_run: int
    steps_saved: int
    device_seconds: float
    energy_joules: float | None = None
    notes: tuple[str, ...] = ()
    bad_donor_reason: str = ""
    final_latents: WireTensor | None = None
    lora_patch_step: int | None = None
    residual_wait_share: float | None = None
    thinned_steps: tuple[int, ...] = ()


class ModelRunner(Protocol):
    """Generate images with one model on one device."""

    async def paint(
        self,
        order: ExecuteOrder,
        uploads: Uploads | None,
        emit: Callable[[ExecuteEvent], None],
        accepted_at: float,
        deadline: float | None,
    ) -> PaintedPicture:
        """Emit Started and StepProgress, and put captured latents into `uploads`. Times are on the monotonic clock.
        Raises domain errors; cancelling stops the work at the next step."""
        ...


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
            painted = await self._model_runner.paint(order, uploads, emit, accepted_at, deadline)
            captured, upload_notes = await self._store(uploads, painted, order.cache_thinned_picture)
        finally:
            if uploads is not None:
                uploads.close()
        result = AttemptResult(
            attempt=order.attempt,
            image=painted.image,
            width_px=order.spec.width_px,
            height_px=order.spec.height_px,
            image_digest=painted.digest,
            captured=captured,
            steps_run=painted.steps_run,
            steps_saved=painted.steps_saved,
            model_digest=painted.held.model_digest,
            worker_generation=painted.held.worker_generation,
            timings=stage_timings(accepted_at, (*painted.marks, ("store", painted.ended_at, time.monotonic()))),
            device_seconds=painted.device_seconds,
            energy_joules=painted.energy_joules,
            notes=(*order.notes, *painted.notes, *upload_notes),
            bad_donor_reason=painted.bad_donor_reason,
            lora_patch_step=painted.lora_patch_step,
            residual_wait_share=painted.residual_wait_share,
            thinned_steps=painted.thinned_steps,
        )
        count_result(result)
        return AttemptOutcome(result, painted.final_latents)

    async def _store(
        self, uploads: Uploads | None, painted: PaintedPicture, cache_thinned: bool
    ) -> tuple[CapturedEntries, tuple[str, ...]]:
        """Store the attempt's objects for the cache. An image of a request with skipped steps is stored only if the
        order states that it lost little: every later image made from it inherits the loss."""
        if uploads is None:
            return CapturedEntries(""), ()
        if cache_thinned or not painted.thinned_steps:
            uploads.add_image(painted.png)
        return await uploads.collect(self._upload_timeout_s)
