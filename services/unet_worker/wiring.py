"""Construct a worker process."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch

from pentimento.api.auth.v1 import auth_pb2 as auth_pb
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.devices.claims import visible_gpus
from pentimento.diffusion.device import choose_device
from pentimento.diffusion.engine import (
    Denoiser,
    EngineSettings,
    StepEngine,
    reused_step_share,
)
from pentimento.diffusion.families import BatchKey, DiffusionModel
from pentimento.diffusion.loras import layers_of
from pentimento.domain.components import ComponentRule
from pentimento.domain.fleet import Capability, HeldModel, ModelCost
from pentimento.domain.weights import ShortModel
from pentimento.files.file_sums import file_sums_in
from pentimento.policies.components import Utility
from pentimento.profiles.catalogue import read_profiles
from pentimento.profiles.document import ProfileKind
from pentimento.rpc.channel import channel_opener
from pentimento.rpc.process import started_pool
from pentimento.rpc.settings import with_receiving_room
from pentimento.service.credits import BusyMeter
from pentimento.stores.components import ComponentStore
from pentimento.stores.components.remote import Peers
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.tensors.cuda import region_directory
from services.unet_worker import metrics
from services.unet_worker.adapters.ip_adapters import NO_IP_ADAPTERS, ImagePrompts, IpAdapters, open_ip_adapters
from services.unet_worker.adapters.local_components import LocalComponents
from services.unet_worker.adapters.lora_directory import open_lora_directory, read_bounds
from services.unet_worker.adapters.lora_shelf import KnownLoras, LoraShelf
from services.unet_worker.adapters.uploaded_loras import UploadedLoras
from services.unet_worker.attempts.execution import EngineModelRunner
from services.unet_worker.attempts.finishing import Finisher
from services.unet_worker.attempts.runner import AttemptRunner
from services.unet_worker.attempts.starts import StartResolver
from services.unet_worker.control.conditions import ConditionEncoder
from services.unet_worker.control.replicas import ControlNetReplicas, PeerWorkers, Summing, summed_answers
from services.unet_worker.device.energy import EnergyMeter, open_counter
from services.unet_worker.device.engine_metrics import EngineMetrics
from services.unet_worker.loop_lag import LoopLagProbe
from services.unet_worker.models.checkpoint_loading import denoiser_for, load_checkpoint, short_models, weight_budget
from services.unet_worker.models.loaded import LoadedModel
from services.unet_worker.models.model_card import checkpoints, default_batch_key, held_model, model_costs
from services.unet_worker.models.model_switch import ModelSwitch
from services.unet_worker.models.stored_models import StoredModels
from services.unet_worker.models.warm_up import BatchMeasurement, warm_up
from services.unet_worker.pairing.halves import GuidanceHalves
from services.unet_worker.pairing.servicer import HalfServicer
from services.unet_worker.process import DONOR_TIMEOUT_S, UPLOAD_TIMEOUT_S, WorkerIdentity, WorkerProcess
from services.unet_worker.settings import UnetWorkerSettings

logger = logging.getLogger(__name__)

# For a message of PredictHalf: the contract's max_request_bytes.
_STREAM = pb.DESCRIPTOR.services_by_name["UnetWorkerService"].methods_by_name["PredictHalf"]
MAX_REQUEST_BYTES = _STREAM.GetOptions().Extensions[auth_pb.max_request_bytes]


def with_room_for_halves(settings: UnetWorkerSettings) -> UnetWorkerSettings:
    """Return the settings with room for one half per credit: each may be receiving a message of the largest size at the
    same time. If callers are authenticated, a worker's streams are not counted."""
    if settings.rpc.token_file is not None:
        return settings
    count = settings.credits or settings.max_batch
    return replace(settings, rpc=with_receiving_room(settings.rpc, count, MAX_REQUEST_BYTES))


# Object store calls wait for the network, not for this process; the threads only bound their number.
STORE_THREADS = 4


def loras_of_directory(model: DiffusionModel, held: HeldModel, settings: UnetWorkerSettings) -> KnownLoras | None:
    """Return the validated LoRAs that change this model; None without a directory of LoRAs."""
    if settings.adapters_dir is None:
        return None
    base = layers_of(model.info.family, model.adaptable)
    bounds = read_bounds(settings.profiles, settings.adapters_dir, held.model_digest)
    sums = file_sums_in(settings.component_cache_dir)
    directory = open_lora_directory(settings.adapters_dir, held.model_digest, base, model.dtype, bounds, sums)
    logger.info("%d LoRAs for the model", len(directory.adapters))
    return directory


def ip_adapters_of_directory(model: DiffusionModel, settings: UnetWorkerSettings) -> IpAdapters:
    """Return the IP-Adapters that fit this model; none without a directory."""
    directory = settings.ip_adapters_dir
    return open_ip_adapters(directory, model) if directory is not None and directory.is_dir() else NO_IP_ADAPTERS


@dataclass(frozen=True)
class ModelSource:
    """Describe a source of models: how to load one, how its device sums ControlNets' answers for a step, its additional
    capabilities, the LoRAs and IP-Adapters that change the model, the rule of the LoRAs in memory, and the models that
    its memory cannot hold. The device is real or paced."""

    load: Callable[[UnetWorkerSettings], DiffusionModel]
    summing: Summing
    capabilities: frozenset[Capability] = frozenset()
    loras: Callable[[DiffusionModel, HeldModel, UnetWorkerSettings], KnownLoras | None] = loras_of_directory
    lora_rule: Callable[[], ComponentRule] = Utility
    ip_adapters: Callable[[DiffusionModel, UnetWorkerSettings], IpAdapters] = ip_adapters_of_directory
    short_models: Callable[[Mapping[str, UnetWorkerSettings]], tuple[ShortModel, ...]] = lambda models: ()


CHECKPOINTS = ModelSource(
    lambda settings: load_checkpoint(
        settings.model,
        settings.device,
        settings.dtype,
        settings.kernels,
        settings.weights,
        settings.embeddings_dir,
        file_sums_in(settings.component_cache_dir),
        settings.tile_px,
        weight_budget(settings, choose_device(settings.device)),
        settings.text_encoders,
    ),
    summed_answers,
    short_models=short_models,
)


class TorchModels:
    """Hold a device's models by name, with the settings to load each. See `process.WorkerModels`."""

    def __init__(self, models: Mapping[str, UnetWorkerSettings], source: ModelSource = CHECKPOINTS) -> None:
        self._models = models
        self._source = source
        self._lag = LoopLagProbe(metrics.LOOP_LAG_SECONDS.observe)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._models)

    def costs(self) -> tuple[ModelCost, ...]:
        return model_costs(self._models)

    async def serve(self, identity: WorkerIdentity) -> ModelSwitch:
        """Load, measure and compile off the event loop."""
        loader = CheckpointLoader(self._models, identity, self._source)
        first = await loader.load(self.names[0])
        others = {name: self._models[name] for name in self.names[1:]}
        short = await asyncio.to_thread(self._source.short_models, others)
        backend = ModelSwitch(first, loader.load, identity.changed, short)
        self._lag.start()
        return backend

    def close(self) -> None:
        self._lag.close()


class CheckpointLoader:
    """Load models for one start of a worker."""

    def __init__(self, models: Mapping[str, UnetWorkerSettings], identity: WorkerIdentity, source: ModelSource) -> None:
        self._models = models
        self._source = source
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        # One per process: all models have the same channel settings.
        self._open_channel = channel_opener(next(iter(models.values())).channels)

    async def load(self, name: str) -> LoadedModel:
        """Return the model, ready to serve. A model that fails to get there leaves nothing running."""
        loaded = await asyncio.to_thread(self._load, self._models[name])
        try:
            await warm_up(loaded.runner, loaded.held)
        except BaseException:
            await asyncio.to_thread(loaded.close)
            raise
        return loaded

    def _load(self, settings: UnetWorkerSettings) -> LoadedModel:
        objects = open_objects(settings.objects_url)
        torch.set_num_threads(settings.threads)
        logger.info("loading the model", extra={"visible_gpus": visible_gpus()})
        with ExitStack() as begun:
            loaded = self._assemble(self._source.load(settings), objects, settings, begun)
            begun.pop_all()
        return loaded

    def _assemble(
        self, model: DiffusionModel, objects: ObjectStore, settings: UnetWorkerSettings, begun: ExitStack
    ) -> LoadedModel:
        """Construct the parts of a loaded model. `begun` ends the started ones on failure."""
        held = held_model(model.info, settings, self._identity.generation)
        # Before memory is measured: image encoders are as large as a text encoder.
        ip_adapters = self._source.ip_adapters(model, settings)
        denoiser = denoiser_for(model, settings.compile)
        engine = self._start_engine(model, denoiser, settings)
        begun.callback(engine.close)
        key = default_batch_key(model.info, held)
        measurement = _measure(engine, model, denoiser, key, settings)
        reused = _reused_step_share(engine, model, denoiser, key, measurement.step_s, settings)
        held = replace(held, step_s=measurement.step_s, reused_step_share=reused)
        store_threads = started_pool(STORE_THREADS, "objects")
        begun.callback(store_threads.shutdown, wait=False)
        known = self._source.loras(model, held, settings)
        components = self._identity.components
        layers = layers_of(model.info.family, model.adaptable)
        uploaded = UploadedLoras(components, layers, model.dtype) if components is not None else None
        memory_bytes, rule = settings.lora_memory_mib * 2**20, self._source.lora_rule()
        loras = LoraShelf(known, memory_bytes, lambda: self._news_of_loras(engine), uploaded, rule)
        finisher = Finisher(model, threads=settings.threads)
        shared_device = model.device if settings.share_device_memory else None
        directory = region_directory(settings.shared_memory_dir, shared_device)
        energy = _energy_meter(model.device)
        if energy is not None:
            begun.callback(energy.close)
        replicas = ControlNetReplicas(self._open_channel, directory, self._source.summing, listener=engine.waiting)
        model_runner = EngineModelRunner(
            self._identity.instance_id,
            held,
            engine,
            finisher,
            StartResolver(model, objects, store_threads, DONOR_TIMEOUT_S),
            settings.progress_interval_ms / 1000,
            energy.watts if energy is not None else lambda since, until: None,
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
        parts = (engine, finisher, runner, store_threads)
        halves = HalfServicer(GuidanceHalves(model, held, engine, loras, directory, replicas))
        return LoadedModel(
            held,
            model.info,
            model.device,
            *parts,
            max_batch=settings.max_batch,
            loras=loras,
            halves=halves,
            energy=energy,
            device_capabilities=self._source.capabilities,
            ip_adapters=ip_adapters,
            weights=model.weights,
        )

    def _news_of_loras(self, engine: StepEngine) -> None:
        """Wake the engine and report the resident LoRAs to frontdoors; on the loader's threads."""
        engine.wake()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._identity.changed)

    def _start_engine(self, model: DiffusionModel, denoiser: Denoiser, settings: UnetWorkerSettings) -> StepEngine:
        scraped = BusyMeter(time.monotonic)
        engine = StepEngine(
            model,
            EngineSettings(
                threads=settings.threads,
                max_batch=settings.max_batch,
                aging_limit_s=settings.aging_limit_s,
                preempt=settings.preempt,
            ),
            EngineMetrics((self._identity.busy, scraped)),
            denoiser,
        )
        metrics.QUEUE.set_function(lambda: engine.waiting_count)
        metrics.RUNNING.set_function(lambda: engine.running_count)
        metrics.BUSY_SHARE.set_function(scraped.share)
        for one in model.weights:
            metrics.WEIGHT_BYTES.labels(one.component).set(one.device_bytes)
        engine.start()
        return engine


def wire(settings: UnetWorkerSettings, stored: StoredModels | None = None) -> WorkerProcess:
    """Construct the process inside its event loop. `stored`: the models that are fetched when they are loaded.
    Raises InvalidArgument for two models with one name."""
    source = CHECKPOINTS if stored is None else replace(CHECKPOINTS, load=partial(stored.load, CHECKPOINTS.load))
    models, open_components = TorchModels(checkpoints(settings), source), partial(_local_components, settings)
    return WorkerProcess(with_room_for_halves(settings), models, settings.credits, open_components)


def _measure(
    engine: StepEngine, model: DiffusionModel, denoiser: Denoiser, key: BatchKey, settings: UnetWorkerSettings
) -> BatchMeasurement:
    """Prepare the engine for its first request: measure memory, compile graphs, on the engine's thread."""
    budget = weight_budget(settings, model.device)
    measurement = BatchMeasurement(model, denoiser, engine.limits, key, budget, settings.warm_up_s)
    engine.call(measurement.before_serving).result()
    return measurement


def _reused_step_share(
    engine: StepEngine,
    model: DiffusionModel,
    denoiser: Denoiser,
    key: BatchKey,
    step_s: float,
    settings: UnetWorkerSettings,
) -> float:
    """Measure a step with reused features, if a profile allows such steps; 0 without one."""
    profiles = read_profiles(settings.profiles).of(ProfileKind.FEATURES)
    if all(profile.of.model_digest != model.info.model_digest for profile in profiles):
        return 0.0
    return engine.call(partial(reused_step_share, model, denoiser, key, step_s)).result()


def _local_components(settings: UnetWorkerSettings, peers: Peers) -> LocalComponents | None:
    if settings.component_cache_dir is None:
        return None
    disk_bytes, host_bytes = settings.component_disk_mib * 2**20, settings.component_host_mib * 2**20
    store = ComponentStore(settings.component_cache_dir, disk_bytes, host_bytes, Utility, peers)
    return LocalComponents(store, open_objects(settings.objects_url), disk_bytes)


def _energy_meter(device: torch.device) -> EnergyMeter | None:
    """Start the energy meter; None if the device reports no energy."""
    counter = open_counter(device)
    if counter is None:
        return None
    meter = EnergyMeter(counter, metrics.ENERGY.inc, fail=metrics.ENERGY_FAILURES.inc)
    meter.start()
    return meter
