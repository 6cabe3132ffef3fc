"""The emulated `DeviceBackend`: attempts, starts, stores and answers are real, the painting is not."""

import asyncio
import hashlib
import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from pentimento.devices.emulation import EmulatedDevices, EmulatedFleet, EmulatedModel
from pentimento.domain.errors import Cancelled, DeadlineExceeded, InvalidArgument, PentimentoError
from pentimento.domain.execution import AttemptResult, ExecuteEvent, PlaceYielded, Started, StepProgress
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import CapturedEntries, FromImage, FromLatent, GenerationSpec, NoiseForm, Route
from pentimento.stores.objects import ObjectStore
from services.unet_worker import metrics
from services.unet_worker.attempts.accounts import count_result, stage_timings
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder
from services.unet_worker.attempts.yielding import PlaceWatch
from services.unet_worker.cache.donors import DonorReader, UnusableDonor
from services.unet_worker.cache.uploads import Uploads
from services.unet_worker.device.busy import BusyMeter
from services.unet_worker.device.device_backend import DeviceMemory
from services.unet_worker.emulation.engine import EmulatedEngine, EmulatedEngineSettings, EmulatedJob
from services.unet_worker.emulation.model import (
    check_profiled,
    default_key,
    device_costs,
    emulated_held_model,
    finish_cost,
    key_of,
)
from services.unet_worker.emulation.pictures import EmulatedPicture, EmulatedPictures, stand_in_latent

CAPABILITIES = frozenset({Capability.LATENT_START, Capability.IMAGE_START, Capability.EMULATED})
RECORDED_NOTE = "emulated: profiled times, a recorded picture"
MADE_UP_NOTE = "emulated: profiled times, no picture was painted"


@dataclass(frozen=True)
class EmulatedLimits:
    """Seconds."""

    progress_interval_s: float
    donor_timeout_s: float
    upload_timeout_s: float


@dataclass(frozen=True)
class EmulatedStart:
    first_step: int = 0
    saved_steps: int = 0
    note: str = ""
    bad_donor_reason: str = ""


class JobBridge:
    """News of one job. Progress is thinned out, as the real worker's is."""

    def __init__(
        self, worker_id: str, emit: Callable[[ExecuteEvent], None], uploads: Uploads | None, interval_s: float
    ) -> None:
        self._worker_id = worker_id
        self._emit = emit
        self._uploads = uploads
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._next_at = 0.0
        self._step_count = 1
        self._place = PlaceWatch(0, 0, 0.0)
        self.size = (8, 8)
        self.done: asyncio.Future[EmulatedJob] = self._loop.create_future()

    def started(self, first_step: int, step_count: int) -> None:
        self._step_count = step_count
        self._place = PlaceWatch(first_step, step_count, self._loop.time())
        self._emit(Started(self._worker_id, first_step, step_count))

    def stepped(self, step: int) -> None:
        if self._uploads is not None and step in self._uploads.steps:
            self._uploads.add_latent(step, 1.0 - step / self._step_count, lambda: stand_in_latent(*self.size))
        self._yield_place(step)
        now = self._loop.time()
        if now >= self._next_at:
            self._next_at = now + self._interval_s
            self._emit(StepProgress(step, self._step_count))

    def finished(self, job: EmulatedJob) -> None:
        self._yield_place(self._step_count)
        if not self.done.done():
            self.done.set_result(job)

    def _yield_place(self, step: int) -> None:
        if self._place.yields(step, self._loop.time()):
            self._emit(PlaceYielded())

    def failed(self, error: PentimentoError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class EmulatedBackend:
    """Holds one of the device's models at a time; see `device_backend.DeviceBackend`. `changed` is called when what it
    holds or takes changes. `source` draws all its times."""

    def __init__(
        self,
        identity: tuple[str, int],
        fleet: EmulatedFleet,
        devices: EmulatedDevices,
        objects: ObjectStore,
        store_threads: Executor,
        limits: EmulatedLimits,
        engine_settings: EmulatedEngineSettings,
        busy: BusyMeter,
        changed: Callable[[], None],
        source: random.Random,
    ) -> None:
        """`identity` is the instance id and its generation. Raises what is wrong with a recording."""
        self._identity = identity
        self._fleet = fleet
        self._devices = devices
        self._objects = objects
        self._store_threads = store_threads
        self._donors = DonorReader(objects, store_threads, limits.donor_timeout_s)
        self._limits = limits
        self._busy = busy
        self._changed = changed
        self._source = source
        self._pictures = {name: EmulatedPictures(fleet, fleet.model(name)) for name in devices.models}
        self._held = {name: emulated_held_model(fleet.model(name), identity[1]) for name in devices.models}
        self._model = self._target = fleet.model(devices.models[0])
        self._loop = asyncio.get_running_loop()
        self._finisher_free_at = 0.0
        self._attempt_count = 0
        self._max_batch: int | None = None
        self._switch: asyncio.Task[None] | None = None
        self._loading = False
        self._idle = asyncio.Event()
        self.engine = EmulatedEngine(device_costs(self._model, devices), engine_settings, source, self._loop, self._ran)

    @property
    def held(self) -> HeldModel:
        return self._held[self._model.name]

    @property
    def target_model(self) -> str:
        """The model that it holds, or is about to hold."""
        return self._target.name

    @property
    def noise_form(self) -> NoiseForm:
        return NoiseForm.VARIANCE_PRESERVING

    @property
    def capabilities(self) -> frozenset[Capability]:
        return CAPABILITIES | ({Capability.STEP_BATCHING} if self._fleet.step_batching else frozenset())

    @property
    def device(self) -> str:
        return f"emulated {self._devices.name}"

    @property
    def batch_limit(self) -> int:
        return 0 if self._switch is not None else self.engine.costs.limit(default_key(self._model))

    @property
    def running_count(self) -> int:
        return self.engine.running_count

    def memory(self) -> DeviceMemory:
        """Of the device that it stands for; 0 where the fleet's file says nothing."""
        total = self._devices.memory_bytes or self._model.profile.device_memory_bytes or 0
        return DeviceMemory(min(self._model.profile.idle_memory_bytes or 0, total), total)

    def check(self, spec: GenerationSpec) -> None:
        check_profiled(self.engine.costs, spec)

    def assign(self, name: str, max_batch: int) -> None:
        """Hold this model, in batches of at most that many. Another one is loaded once what is here is done, and takes
        its time; until then nothing new is taken. A stranger is left alone: plans are intent."""
        if name not in self._devices.models:
            return
        self._target, self._max_batch = self._fleet.model(name), max_batch
        if self._target is self._model and not self._loading:
            self._stay()
        elif self._switch is None:
            self._switch = self._loop.create_task(self._load(), name="switch")
            self._changed()

    def close(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._stop)
        self._store_threads.shutdown(wait=False, cancel_futures=True)

    def _stop(self) -> None:
        if self._switch is not None:
            self._switch.cancel()
        self.engine.fail_all(Cancelled("CANCELLED", "the worker stopped"))

    def _stay(self) -> None:
        """With the model that is here; a switch that has not got beyond draining is called off."""
        before = self.batch_limit
        if self._switch is not None:
            self._switch.cancel()
            self._switch = None
        self.engine.costs = device_costs(self._model, self._devices, self._max_batch)
        if self.batch_limit != before:
            self._changed()

    async def _load(self) -> None:
        """Drain, wait for as long as loading takes, serve. The target may change once more meanwhile."""
        while self._attempt_count:
            self._idle.clear()
            await self._idle.wait()
        self._loading = True
        while self._target is not self._model:
            loading = self._target
            await asyncio.sleep(loading.load.draw(self._source))
            self._model = loading
        self._loading, self._switch = False, None
        self.engine.costs = device_costs(self._model, self._devices, self._max_batch)
        self._changed()

    async def run(self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None]) -> AttemptOutcome:
        """As the real worker's; PNG is the only format, and there are no final latents."""
        if order.image_format != "png":
            raise InvalidArgument.of("image_format", f"must be png on an emulated device, got {order.image_format}")
        if order.return_latents:
            raise InvalidArgument.of("return_latents", "must be false: an emulated device has no latents")
        accepted_at = self._loop.time()
        deadline = accepted_at + order.deadline_remaining_ms / 1000 if order.deadline_remaining_ms else None
        self._attempt_count += 1
        try:
            async with asyncio.timeout_at(deadline):
                return await self._run(order, emit, accepted_at, deadline)
        except TimeoutError:
            raise DeadlineExceeded("DEADLINE_EXCEEDED", "the deadline passed before the picture was done") from None
        finally:
            self._attempt_count -= 1
            if not self._attempt_count:
                self._idle.set()

    async def _run(
        self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None], accepted_at: float, deadline: float | None
    ) -> AttemptOutcome:
        held, model = self.held, self._model
        start = await self._start(order.spec, order.route)
        grant = order.cache_grant
        uploads = Uploads(grant, self._objects, self._store_threads) if grant is not None else None
        bridge = JobBridge(self._identity[0], emit, uploads, self._limits.progress_interval_s)
        bridge.size = (order.spec.width_px, order.spec.height_px)
        job = await self._paint(order.spec, start, deadline, bridge)
        decode_s = await self._finish(model, job)
        encoded_at = self._loop.time()
        picture = self._pictures[model.name].of(order.spec.prompt, order.spec.seed, start.first_step)
        captured, upload_notes = await self._store(uploads, picture)
        marks = (
            ("start", accepted_at, job.queued_at),
            ("queue", job.queued_at, job.started_at),
            ("prepare", job.started_at, job.prepared_at),
            ("denoise", job.prepared_at, job.finished_at),
            ("decode", job.finished_at, encoded_at),
            ("store", encoded_at, self._loop.time()),
        )
        note = RECORDED_NOTE if self._pictures[model.name].recorded else MADE_UP_NOTE
        result = AttemptResult(
            attempt=order.attempt,
            image=picture.png,
            width_px=order.spec.width_px,
            height_px=order.spec.height_px,
            image_digest=f"sha256:{hashlib.sha256(picture.png).hexdigest()}",
            captured=captured,
            steps_run=job.step_count - job.first_step,
            steps_saved=start.saved_steps,
            model_digest=held.model_digest,
            worker_generation=held.worker_generation,
            timings=stage_timings(accepted_at, marks),
            device_seconds=job.device_s + decode_s,
            notes=(*order.notes, note, *([start.note] if start.note else []), *upload_notes),
            bad_donor_reason=start.bad_donor_reason,
        )
        count_result(result)
        return AttemptOutcome(result)

    async def _start(self, spec: GenerationSpec, route: Route) -> EmulatedStart:
        """Donors are read from the real store, and not looked at."""
        if spec.init_image is not None:
            return EmulatedStart(spec.num_inference_steps - int(spec.num_inference_steps * spec.init_image.strength))
        try:
            match route.start:
                case FromLatent() as latent:
                    await self._donors.read(latent.latent)
                    step = round(latent.resume_step * spec.num_inference_steps / latent.donor_steps)
                    return EmulatedStart(step, step)
                case FromImage() as image:
                    await self._donors.read(image.image)
                    return EmulatedStart(image.start_step, image.start_step)
        except UnusableDonor as unusable:
            return EmulatedStart(note=str(unusable), bad_donor_reason=unusable.bad_donor_reason)
        return EmulatedStart()

    async def _paint(
        self, spec: GenerationSpec, start: EmulatedStart, deadline: float | None, bridge: JobBridge
    ) -> EmulatedJob:
        first_step = min(start.first_step, spec.num_inference_steps - 1)
        job = self.engine.submit(key_of(spec), first_step, spec.num_inference_steps, deadline, bridge)
        self._changed()
        try:
            return await bridge.done
        finally:
            self.engine.stop(job, Cancelled("CANCELLED", "the attempt was stopped"))

    async def _finish(self, model: EmulatedModel, job: EmulatedJob) -> float:
        """One picture after the other is decoded and encoded, beside the steps of others; the seconds of decoding."""
        decode, encode = (cost.draw(self._source) for cost in finish_cost(model, self._devices))
        self._finisher_free_at = max(self._finisher_free_at, job.finished_at) + decode + encode
        await asyncio.sleep(max(self._finisher_free_at - self._loop.time(), 0.0))
        return decode

    async def _store(
        self, uploads: Uploads | None, picture: EmulatedPicture
    ) -> tuple[CapturedEntries, tuple[str, ...]]:
        if uploads is None:
            return CapturedEntries(""), ()
        uploads.add_image(picture.png)
        return await uploads.collect(self._limits.upload_timeout_s)

    def _ran(self, request_count: int, seconds: float, late_s: float) -> None:
        metrics.STEP_SECONDS.observe(seconds)
        metrics.BATCH.observe(request_count)
        metrics.LOOP_LAG_SECONDS.observe(late_s)
        self._busy.add(seconds)
