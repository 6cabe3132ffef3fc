"""Load a worker's models: from their source to all parts that serve them."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

import pentimento.profiles as profiles
from pentimento.devices.claims import visible_gpus
from pentimento.diffusion.device import EnergyMeter, open_counter
from pentimento.diffusion.engine import (
    BatchReport,
    Denoiser,
    EngineObserver,
    EngineSettings,
    StepEngine,
    reused_step_share,
)
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.diffusion.host_memory import host_buffers
from pentimento.diffusion.loras import layers_of
from pentimento.domain.components import ComponentRule, Tier
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.weights import ModelChange, ShortModel
from pentimento.files.file_sums import file_sums_in
from pentimento.policies.components import Utility
from pentimento.rpc.channel import channel_opener
from pentimento.rpc.process import started_pool
from pentimento.service.credits import BusyMeter
from pentimento.stores.objects import open_objects
from pentimento.tensors.cuda import region_directory
from services.unet_worker import adapters, metrics
from services.unet_worker.adapters.image_prompts import NO_IP_ADAPTERS, ImagePrompts, IpAdapters
from services.unet_worker.adapters.lora_shelf import KnownLoras, LoraShelf
from services.unet_worker.attempts.execution import EngineModelRunner
from services.unet_worker.attempts.finishing import Finisher
from services.unet_worker.attempts.runner import AttemptRunner
from services.unet_worker.attempts.starts import StartResolver
from services.unet_worker.models.checkpoint_loading import (
    Placement,
    at_low_priority,
    denoiser_for,
    model_change,
    stage_checkpoint,
    weight_budget,
)
from services.unet_worker.models.loaded import BatchMeasurement, KnownSteps, LoadedModel, default_batch_key, warm_up
from services.unet_worker.models.model_card import held_model
from services.unet_worker.models.stored_models import local_tiers
from services.unet_worker.process import DONOR_TIMEOUT_S, UPLOAD_TIMEOUT_S, WorkerIdentity
from services.unet_worker.remote.halves import GuidanceHalves
from services.unet_worker.remote.halves_servicer import HalfServicer
from services.unet_worker.remote.remote_control import ConditionEncoder
from services.unet_worker.remote.replicas import ControlNetReplicas, PeerWorkers, Summing
from services.unet_worker.settings import UnetWorkerSettings

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Object store calls wait for the network, not for this process; the threads only bound their number.
STORE_THREADS = 4
# Time before serving to measure larger batches; the rest is measured while idle.
WARM_UP_S = 10.0
# Least time between progress messages of an attempt: each wakes the event loop, and clients read a few a second.
PROGRESS_INTERVAL_S = 0.1


class EngineMetrics(EngineObserver):
    """Record engine metrics. `meters` add up the device's busy seconds: one for each reader of a share."""

    def __init__(self, meters: Sequence[BusyMeter]) -> None:
        self._meters = meters
        # None until the model is measured.
        self.measurement: BatchMeasurement | None = None

    def admitted(self, waited_s: float) -> None:
        metrics.QUEUE_WAIT_SECONDS.observe(waited_s)

    def ran(self, report: BatchReport) -> None:
        metrics.STEP_SECONDS.observe(report.seconds)
        metrics.BATCH.observe(report.request_count)
        for meter in self._meters:
            meter.add(report.seconds)

    def took_step(self, size: BatchKey, seconds: float, *, alone: bool) -> None:
        if self.measurement is not None:
            self.measurement.took_step(size, seconds, alone=alone)

    def preempted(self, request_count: int) -> None:
        metrics.PREEMPTIONS.inc(request_count)

    def ran_out_of_memory(self, request_count: int) -> None:
        metrics.OUT_OF_MEMORY.inc()


def loras_of_directory(model: DiffusionModel, held: HeldModel, settings: UnetWorkerSettings) -> KnownLoras | None:
    if settings.adapters_dir is None:
        return None
    base = layers_of(model.info.family, model.adaptable)
    bounds = adapters.bounds_followed(settings.profiles, settings.adapters_dir, held.model_digest)
    sums = file_sums_in(settings.component_cache_dir)
    directory = adapters.open_lora_directory(
        settings.adapters_dir, held.model_digest, base, model.dtype, bounds, sums, settings.trusted
    )
    logger.info("%d LoRAs for the model", len(directory.adapters))
    return directory


def ip_adapters_of_directory(model: DiffusionModel, settings: UnetWorkerSettings) -> IpAdapters:
    directory = settings.ip_adapters_dir
    return NO_IP_ADAPTERS if directory is None else adapters.open_ip_adapters(directory, model)


@dataclass(frozen=True)
class ModelSource:
    """Describe a source of models: how to load one, how its device sums ControlNets' answers for a step, its additional
    capabilities, the LoRAs and IP-Adapters that change the model, the rule of the LoRAs in memory, the models that its
    memory cannot hold, and the steps and guidance of requests without them, if not those of `usual_of`. The device is
    real or paced. `change` returns the way to change to a model, `stage` reads one into host memory; `tiers` returns
    the bytes of its files by the tier that has them."""

    load: Callable[[UnetWorkerSettings], DiffusionModel]
    summing: Summing
    capabilities: frozenset[Capability] = frozenset()
    loras: Callable[[DiffusionModel, HeldModel, UnetWorkerSettings], KnownLoras | None] = loras_of_directory
    lora_rule: Callable[[], ComponentRule] = Utility
    ip_adapters: Callable[[DiffusionModel, UnetWorkerSettings], IpAdapters] = ip_adapters_of_directory
    short_models: Callable[[Mapping[str, UnetWorkerSettings]], tuple[ShortModel, ...]] = lambda models: ()
    change: Callable[[str, UnetWorkerSettings], ModelChange] = model_change
    stage: Callable[[UnetWorkerSettings], Placement] = stage_checkpoint
    tiers: Callable[[UnetWorkerSettings], Mapping[Tier, int]] = local_tiers
    usual: tuple[int, float] | None = None


class CheckpointLoader:
    """Load models for one start of a worker, by name. All methods raise the errors of a model that cannot be loaded."""

    def __init__(self, models: Mapping[str, UnetWorkerSettings], identity: WorkerIdentity, source: ModelSource) -> None:
        self._models = models
        self._source = source
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        # One per process: all models have the same channel settings.
        self._open_channel = channel_opener(next(iter(models.values())).channels)
        self._energy: EnergyMeter | None = None
        self._scraped = BusyMeter(time.monotonic)
        metrics.BUSY_SHARE.set_function(self._scraped.share)
        # Measurements by name and digest: a model that is loaded again is not measured again.
        self._known: dict[tuple[str, str], KnownSteps] = {}

    def close(self) -> None:
        if self._energy is not None:
            self._energy.close()

    async def tiers(self, name: str) -> Mapping[Tier, int]:
        """Return the bytes of a model's files by the tier that has them; none if that is unknown."""
        return await asyncio.to_thread(self._source.tiers, self._models[name])

    async def change_to(self, name: str, current: LoadedModel) -> ModelChange:
        """Return the way to change from the current model, by the memory that is free now."""
        held = current.held
        self._known[held.model, held.model_digest] = replace(
            current.measurement.known, reused_step_share=held.reused_step_share
        )
        return await asyncio.to_thread(self._source.change, name, self._models[name])

    async def stage(self, name: str) -> Placement:
        """Read a model into host memory, while another one generates."""
        settings = self._models[name]
        return await at_low_priority(partial(_in_threads, settings.threads, partial(self._source.stage, settings)))

    async def load(self, name: str, staged: Placement | None = None, beside: LoadedModel | None = None) -> LoadedModel:
        """Return a model, ready to serve: staged before, or read now. A current model given last generates on the
        same device meanwhile. A failure leaves nothing running."""
        settings = self._models[name]
        logger.info("loading the model", extra={"visible_gpus": visible_gpus()})
        place = partial(_in_threads, settings.threads, staged or partial(self._source.load, settings))
        model = await (at_low_priority(place) if beside is not None else asyncio.to_thread(place))
        known = self._known.get((name, model.info.model_digest))
        other_bytes = beside.weight_bytes if beside is not None else 0
        # Larger batches of a staged model are measured while idle: nothing is generated meanwhile.
        begin = partial(self._begin, model, settings, known, other_bytes, WARM_UP_S if staged is None else 0.0)
        beginning = asyncio.ensure_future(asyncio.to_thread(begin))
        del model, begin
        try:
            loaded = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(_close_unwanted)
            raise
        try:
            if known is None:
                await warm_up(loaded.runner, loaded.held)
        except BaseException:
            await asyncio.to_thread(loaded.close)
            raise
        return loaded

    def _begin(
        self,
        model: DiffusionModel,
        settings: UnetWorkerSettings,
        known: KnownSteps | None,
        other_bytes: int,
        warm_up_s: float,
    ) -> LoadedModel:
        # Before memory is measured: what the former model had, and this one did not need.
        host_buffers(is_read_by_device=False).drop_idle()
        with ExitStack() as begun:
            objects = open_objects(settings.objects_url)
            # Before memory is measured: image encoders are as large as a text encoder.
            ip_adapters = self._source.ip_adapters(model, settings)
            denoiser = denoiser_for(model, settings.compile)
            observer = EngineMetrics((self._identity.busy, self._scraped))
            engine = self._start_engine(model, denoiser, settings, observer)
            begun.callback(engine.close)
            held, measurement = self._measured(model, denoiser, engine, settings, known, other_bytes, warm_up_s)
            observer.measurement = measurement
            store_threads = started_pool(STORE_THREADS, "objects")
            begun.callback(store_threads.shutdown, wait=False)
            loras = self._lora_shelf(model, held, engine, settings)
            finisher = Finisher(model, threads=settings.threads)
            if self._energy is None:
                self._energy = _energy_meter(model.device)
            shared_device = model.device if settings.share_device_memory else None
            directory = region_directory(settings.shared_memory_dir, shared_device)
            replicas = ControlNetReplicas(self._open_channel, directory, self._source.summing, listener=engine.waiting)
            model_runner = EngineModelRunner(
                self._identity.instance_id,
                held,
                engine,
                finisher,
                StartResolver(model, objects, store_threads, DONOR_TIMEOUT_S),
                PROGRESS_INTERVAL_S,
                self._energy.watts if self._energy is not None else lambda since, until: None,
                settings.latent_format,
                replicas,
                loras,
                ConditionEncoder(model, engine, replicas),
                PeerWorkers(self._open_channel, directory, listener=engine.waiting),
                ImagePrompts(model, ip_adapters, engine.call),
            )
            # The engine may resume its idle work once no attempt is running.
            runner = AttemptRunner(model_runner, objects, store_threads, UPLOAD_TIMEOUT_S, engine.wake)
            engine.work_when_idle(lambda wanted: measurement.when_idle(lambda: wanted() or runner.running_count > 0))
            loaded = LoadedModel(
                held,
                model.info,
                model.device,
                engine,
                finisher,
                runner,
                store_threads,
                max_batch=settings.max_batch,
                loras=loras,
                halves=HalfServicer(GuidanceHalves(model, held, engine, loras, directory, replicas)),
                measurement=measurement,
                device_capabilities=self._source.capabilities,
                ip_adapters=ip_adapters,
                networks=model.networks,
                weights=model.weights,
            )
            begun.pop_all()
        return loaded

    def _measured(
        self,
        model: DiffusionModel,
        denoiser: Denoiser,
        engine: StepEngine,
        settings: UnetWorkerSettings,
        known: KnownSteps | None,
        other_bytes: int,
        warm_up_s: float,
    ) -> tuple[HeldModel, BatchMeasurement]:
        """Measure memory and steps before the model serves, unless they are known; return the model's description with
        them."""
        held = held_model(model.info, settings, self._identity.generation, self._source.usual)
        key, budget = default_batch_key(model.info, held), weight_budget(settings, model.device)
        measurement = BatchMeasurement(
            model, denoiser, engine.limits, key, budget, warm_up_s, known=known, other_bytes=other_bytes
        )
        # On the engine's thread: memory, graphs.
        engine.call(measurement.before_serving).result()
        reused = (
            _reused_step_share(engine, model, denoiser, key, measurement.step_s, settings)
            if known is None
            else known.reused_step_share
        )
        return replace(held, step_s=measurement.step_s, reused_step_share=reused), measurement

    def _lora_shelf(
        self, model: DiffusionModel, held: HeldModel, engine: StepEngine, settings: UnetWorkerSettings
    ) -> LoraShelf:
        """Return the LoRAs of the directory and uploaded ones, in memory of `lora_memory_mib`."""
        components, layers = self._identity.components, layers_of(model.info.family, model.adaptable)
        uploaded = None
        if components is not None:
            uploaded = adapters.UploadedLoras(components, layers, model.dtype, held.model_digest, settings.trusted)
        return LoraShelf(
            self._source.loras(model, held, settings),
            settings.lora_memory_mib * 2**20,
            lambda: self._news_of_loras(engine),
            uploaded,
            self._source.lora_rule(),
        )

    def _news_of_loras(self, engine: StepEngine) -> None:
        """Wake the engine and report the resident LoRAs to frontdoors; on the loader's threads."""
        engine.wake()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._identity.changed)

    def _start_engine(
        self, model: DiffusionModel, denoiser: Denoiser, settings: UnetWorkerSettings, observer: EngineObserver
    ) -> StepEngine:
        engine = StepEngine(
            model,
            EngineSettings(
                threads=settings.threads,
                max_batch=settings.max_batch,
                aging_limit_s=settings.aging_limit_s,
                preempt=settings.preempt,
            ),
            observer,
            denoiser,
        )
        for one in model.weights:
            metrics.WEIGHT_BYTES.labels(one.component).set(one.device_bytes)
        engine.start()
        return engine


def _reused_step_share(
    engine: StepEngine,
    model: DiffusionModel,
    denoiser: Denoiser,
    key: BatchKey,
    step_s: float,
    settings: UnetWorkerSettings,
) -> float:
    """Measure a step with reused features, if a profile allows such steps; 0 without one."""
    found = profiles.read_profiles(settings.profiles).of(profiles.ProfileKind.FEATURES) if settings.profiles else ()
    if all(profile.of.model_digest != model.info.model_digest for profile in found):
        return 0.0
    return engine.call(partial(reused_step_share, model, denoiser, key, step_s)).result()


def _in_threads(count: int, work: Callable[[], T]) -> T:
    torch.set_num_threads(count)
    return work()


def _close_unwanted(beginning: "asyncio.Future[LoadedModel]") -> None:
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().close()


def _energy_meter(device: torch.device) -> EnergyMeter | None:
    counter = open_counter(device)
    if counter is None:
        return None
    meter = EnergyMeter(counter, metrics.ENERGY.inc, fail=metrics.ENERGY_FAILURES.inc)
    meter.start()
    return meter
