"""The emulated `DeviceBackend`: attempts, starts, stores and answers are real, generation is not."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from lab.emulation.emulated_worker.device_news import Device, DeviceNews, Job, JobBridge, LoopTimers
from lab.emulation.emulated_worker.images import EmulatedImages
from lab.emulation.emulated_worker.model import (
    adapters_of,
    check_profiled,
    costs_on,
    decoding_share,
    emulated_held_model,
    emulated_loras,
    key_of,
)
from lab.emulation.emulated_worker.settings import EmulatedWorkerSettings
from lab.emulation.fleet_file import EmulatedDevices, EmulatedFleet, EmulatedModel, largest_batch
from lab.emulation.jobs import DeviceSettings
from pentimento.devices.choices import DeviceMemory
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import Cancelled, InvalidArgument
from pentimento.domain.execution import AttemptResult, ExecuteEvent
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import CapturedEntries, FromImage, FromLatent, GenerationSpec, NoiseForm, Route
from pentimento.domain.replay import taken_of, thinned_steps_of
from pentimento.domain.thinned_steps import thinned_note
from pentimento.domain.weights import ModelChange, SwitchWay
from pentimento.policies.adapter_needs import ADAPTER_CAPABILITIES
from pentimento.rpc.process import started_pool
from pentimento.stores.objects import open_objects
from services.unet_worker import metrics
from services.unet_worker.attempts.cache_objects import DonorReader, UnusableDonor, Uploads
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder
from services.unet_worker.attempts.runner import AttemptImage, AttemptRunner, stage_timings
from services.unet_worker.device_backend import HeldAdapters, ModelChanges
from services.unet_worker.process import DONOR_TIMEOUT_S, UPLOAD_TIMEOUT_S, WorkerIdentity

CAPABILITIES = frozenset({Capability.LATENT_START, Capability.IMAGE_START, Capability.EMULATED})
RECORDED_NOTE = "emulated: profiled times, a recorded image"
MADE_UP_NOTE = "emulated: profiled times, no image was generated"
STORE_THREADS = 2
# Least time between progress messages: many devices share this machine.
PROGRESS_INTERVAL_S = 1.0


@dataclass(frozen=True)
class EmulatedStart:
    first_step: int = 0
    saved_steps: int = 0
    note: str = ""
    bad_donor_reason: str = ""


class EmulatedBackend:
    """Hold one of the device's models at a time; see `device_backend.DeviceBackend`."""

    def __init__(
        self,
        identity: WorkerIdentity,
        fleet: EmulatedFleet,
        devices: EmulatedDevices,
        settings: EmulatedWorkerSettings,
        progress_interval_s: float,
    ) -> None:
        """Read the recordings. Raises NotFound or FailedPrecondition naming an unusable file."""
        self._worker_id = identity.instance_id
        self._fleet = fleet
        self._devices = devices
        objects = open_objects(settings.objects_url)
        self._store_threads = started_pool(STORE_THREADS, "objects")
        self._donors = DonorReader(objects, self._store_threads, DONOR_TIMEOUT_S)
        self._progress_interval_s = progress_interval_s
        self._pictures = {name: EmulatedImages(fleet, fleet.model(name)) for name in devices.models}
        self._held = {name: emulated_held_model(fleet.model(name), identity.generation) for name in devices.models}
        self._loop = asyncio.get_running_loop()
        first = fleet.model(devices.models[0])
        self.emulated = Device(
            identity.instance_id,
            devices.name,
            LoopTimers(),
            DeviceNews(identity.busy, identity.changed),
            random.Random(f"{fleet.seed} {identity.instance_id}"),
            DeviceSettings(fleet.step_batching, fleet.preempt, aging_limit_s=settings.aging_limit_s, each_step=True),
            costs_on(first, devices),
            largest_batch(first, devices),
            devices.speed_changes,
            fleet.adapters,
        )
        self._loras = emulated_loras(fleet)
        self._runner = AttemptRunner(self, objects, self._store_threads, UPLOAD_TIMEOUT_S, self.emulated.release)

    @property
    def _model(self) -> EmulatedModel:
        return self._fleet.model(self.emulated.costs.model)

    @property
    def held(self) -> HeldModel:
        return self._held[self.emulated.costs.model]

    @property
    def target_model(self) -> str:
        """The model that it holds, or is about to hold."""
        return self.emulated.model

    @property
    def changes(self) -> ModelChanges:
        """Return how it changes to other models, which does not depend on the model."""
        costs = self.emulated.costs
        way = None if costs.swap is None else ModelChange(costs.model, SwitchWay.STAGED, 0, 0, 0)
        return ModelChanges(change=way)

    @property
    def noise_form(self) -> NoiseForm:
        return NoiseForm.VARIANCE_PRESERVING

    @property
    def capabilities(self) -> frozenset[Capability]:
        step_batching = {Capability.STEP_BATCHING} if self._fleet.step_batching else frozenset()
        return CAPABILITIES | step_batching | (ADAPTER_CAPABILITIES if self._fleet.adapters.resident_count else set())

    @property
    def adapters(self) -> HeldAdapters:
        return HeldAdapters(self._loras, self.emulated.adapters.resident)

    @property
    def halves(self) -> None:
        return None

    @property
    def device(self) -> str:
        return f"emulated {self._devices.name}"

    @property
    def batch_limit(self) -> int:
        return 0 if self.emulated.draining else self.emulated.max_batch

    @property
    def running_count(self) -> int:
        return self.emulated.running_count

    def memory(self) -> DeviceMemory:
        """Return the memory of the emulated device; 0 if the fleet's file does not give it."""
        total = self._devices.memory_bytes or self._model.profile.device_memory_bytes or 0
        return DeviceMemory(min(self._model.profile.idle_memory_bytes or 0, total), total)

    def check(self, spec: GenerationSpec) -> None:
        check_profiled(self.emulated.costs, spec)

    async def prefetch(self, names: Collection[str], uploaded: Collection[Adapter] = ()) -> None:
        """Wait for LoRAs that are not resident, one after the other. Uploaded ones are not fetched."""
        known = [adapter.name for adapter in self._loras if adapter.name in names]
        await asyncio.sleep(self.emulated.adapters.take(known, self._loop.time()))

    def assign(self, name: str, max_batch: int) -> None:
        """Hold this model, in batches of at most `max_batch`, 0 for the largest that fits. Another model loads after
        the current attempts end, and takes its time; until then no new ones are accepted. Raises KeyError for an
        unknown model."""
        model = self._fleet.model(name)
        largest = largest_batch(model, self._devices)
        self.emulated.assign(costs_on(model, self._devices), min(max_batch or largest, largest))

    def close(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._stop)
        self._store_threads.shutdown(wait=False, cancel_futures=True)

    def _stop(self) -> None:
        for job in self.emulated.lose():
            job.owner.failed(Cancelled("CANCELLED", "the worker stopped"))

    async def run(self, order: ExecuteOrder, emit: Callable[[ExecuteEvent], None]) -> AttemptOutcome:
        """As the real worker's; PNG is the only format, and there are no final latents."""
        if order.image_format != "png":
            raise InvalidArgument.of("image_format", f"must be png on an emulated device, got {order.image_format}")
        if order.return_latents:
            raise InvalidArgument.of("return_latents", "must be false: an emulated device has no latents")
        self.emulated.hold()
        return await self._runner.run(order, emit)

    async def generate(
        self,
        order: ExecuteOrder,
        uploads: Uploads | None,
        emit: Callable[[ExecuteEvent], None],
        accepted_at: float,
        deadline: float | None,
    ) -> AttemptImage:
        """See `runner.ModelRunner`. An event loop's time is the monotonic clock's."""
        held, model, pictures = self.held, self._model, self._pictures[self._model.name]
        start = await self._start(order.spec, order.route)
        thinned = thinned_steps_of(order.route, start.saved_steps)
        order = replace(order, route=replace(order.route, thinned_steps=thinned))
        bridge = JobBridge(
            self._worker_id,
            order,
            start.first_step,
            emit,
            uploads,
            order.progress_pace(self._progress_interval_s),
        )
        if taken_of(order.route.start, start.saved_steps) == order.route.start:
            order.asked_steps.listen(bridge.thin)
        job = await self._denoise(order.spec, deadline, bridge)
        ended_at = self._loop.time()
        png = pictures.of(order.spec.prompt, order.spec.seed, start.first_step).png
        note = RECORDED_NOTE if pictures.recorded else MADE_UP_NOTE
        notes = (note, start.note, thinned_note(bridge.thinned_steps, order.spec.num_inference_steps))
        marks = (
            ("start", accepted_at, job.arrived_s),
            ("queue", job.arrived_s, job.began_s),
            ("prepare", job.began_s, job.prepared_s),
            ("denoise", job.prepared_s, job.denoised_s),
            ("decode", job.denoised_s, ended_at),
        )
        result = AttemptResult(
            attempt=order.attempt,
            image=png,
            width_px=order.spec.width_px,
            height_px=order.spec.height_px,
            image_digest=f"sha256:{hashlib.sha256(png).hexdigest()}",
            captured=CapturedEntries(""),
            steps_run=bridge.steps_run,
            steps_saved=start.saved_steps,
            model_digest=held.model_digest,
            worker_generation=held.worker_generation,
            timings=stage_timings(accepted_at, marks),
            device_seconds=job.device_s + job.finish_s * decoding_share(model),
            notes=tuple(note for note in notes if note),
            bad_donor_reason=start.bad_donor_reason,
            lora_patch_step=order.route.lora_patch_step if order.spec.loras else None,
            thinned_steps=bridge.thinned_steps,
        )
        return AttemptImage(result, png, ended_at)

    async def _start(self, spec: GenerationSpec, route: Route) -> EmulatedStart:
        """Donors are read from the real store, and not looked at."""
        if spec.init_image is not None:
            return EmulatedStart(spec.num_inference_steps - int(spec.num_inference_steps * spec.init_image.strength))
        try:
            match route.start:
                case FromLatent() as latent:
                    await self._donors.read(latent.latent)
                    step = round(latent.saved_steps * spec.num_inference_steps / latent.donor_steps)
                    return EmulatedStart(step, step)
                case FromImage() as image:
                    await self._donors.read(image.image)
                    return EmulatedStart(image.saved_steps, image.saved_steps)
        except UnusableDonor as unusable:
            if route.replay_of:
                raise unusable.of_replay(route) from None
            metrics.SKIPPED_DONORS.inc()
            return EmulatedStart(note=str(unusable), bad_donor_reason=unusable.bad_donor_reason)
        return EmulatedStart()

    async def _denoise(self, spec: GenerationSpec, deadline: float | None, bridge: JobBridge) -> Job:
        """Denoised, then decoded and encoded."""
        self.emulated.start(bridge, bridge.steps_run, deadline, key=key_of(spec), adapters=adapters_of(spec))
        try:
            return await bridge.done
        finally:
            self.emulated.stop(bridge)
