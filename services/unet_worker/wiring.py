"""Puts a worker process together."""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import add_UnetWorkerServiceServicer_to_server
from pentimento.clients.controller import ControllerClient
from pentimento.clients.registration import Registration, generation_at
from pentimento.diffusion.engine import (
    CompiledDenoiser,
    CompileMode,
    Denoiser,
    EagerDenoiser,
    EngineSettings,
    StepEngine,
)
from pentimento.diffusion.families import BatchKey, DiffusionModel, load_model
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import ModelCost, Replica, ReplicaKind, ReplicaReport, WorkerAssignment
from pentimento.rpc import RpcServer, open_channel
from pentimento.rpc.grant_keys import open_grant_keys
from pentimento.stores.objects import ObjectStore, open_objects
from services.unet_worker import metrics
from services.unet_worker.attempts.execution import AttemptRunner, ExecutionLimits
from services.unet_worker.attempts.finishing import Finisher
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.attempts.starts import StartResolver
from services.unet_worker.attempts.validation import AttemptLimits
from services.unet_worker.cache.grants import GrantGuard
from services.unet_worker.cache.uploads import Uploads
from services.unet_worker.device.busy import BusyMeter
from services.unet_worker.device.energy import EnergyMeter, open_counter
from services.unet_worker.device.engine_metrics import EngineMetrics
from services.unet_worker.device.torch_device import (
    choose_device,
    choose_dtype,
    memory_budget_bytes,
)
from services.unet_worker.loop_lag import LoopLagProbe
from services.unet_worker.models.loaded import LoadedModel
from services.unet_worker.models.model_card import checkpoints, default_batch_key, held_model, model_costs
from services.unet_worker.models.model_switch import ModelSwitch
from services.unet_worker.models.plan_following import PlanFollower
from services.unet_worker.models.warm_up import BatchMeasurement, warm_up
from services.unet_worker.servicer import FULL_NAME, UnetWorkerServicer
from services.unet_worker.settings import CompileChoice, UnetWorkerSettings
from services.unet_worker.worker import UnetWorker

logger = logging.getLogger(__name__)

# Object store traffic waits for others, not for this process; the threads only bound how much of it is under way.
STORE_THREADS = 4


@dataclass
class UnetWorkerProcess:
    """`models`: settings to load each with, the first is held at first. `registration` and `following` are None without
    a controller."""

    server: RpcServer
    worker: UnetWorker
    settings: UnetWorkerSettings
    models: Mapping[str, UnetWorkerSettings]
    generation: int
    busy: BusyMeter = field(default_factory=lambda: BusyMeter(time.monotonic))
    lag: LoopLagProbe = field(default_factory=lambda: LoopLagProbe(metrics.LOOP_LAG_SECONDS.observe))
    registration: Registration | None = None
    following: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            await self.server.run_until_stopped(self.warm, self.drain)
        finally:
            await self.close()

    async def close(self) -> None:
        """Stops what is left; takes at most a step."""
        self.lag.close()
        if self.following is not None:
            self.following.cancel()
        await self.worker.close()

    async def warm(self) -> None:
        """Load, measure and compile off the event loop, so that health is answered meanwhile."""
        costs = model_costs(self.models)
        loaded = await self._load(next(iter(self.models)))
        backend = ModelSwitch(loaded, self._load, self.worker.capacity.changed)
        self.lag.start()
        self.worker.serve(backend)
        if self.settings.controller_address:
            self._join(backend, costs)

    async def drain(self) -> None:
        if self.following is not None:
            self.following.cancel()
        await self.worker.drain()
        if self.registration is not None:
            await self.registration.close()

    async def _load(self, name: str) -> LoadedModel:
        """Ready to serve."""
        loaded = await asyncio.to_thread(self._load_checkpoint, self.models[name])
        await warm_up(loaded.runner, loaded.held)
        return loaded

    def _load_checkpoint(self, settings: UnetWorkerSettings) -> LoadedModel:
        objects = open_objects(settings.objects_url)
        torch.set_num_threads(settings.threads)
        quiet_loaders()
        device = choose_device(settings.device)
        logger.info("loading the model")
        model = load_model(settings.model, device, choose_dtype(settings.dtype, device))
        return self._assemble(model, objects, settings)

    def _assemble(self, model: DiffusionModel, objects: ObjectStore, settings: UnetWorkerSettings) -> LoadedModel:
        held = held_model(model.info, settings, self.generation)
        denoiser = _denoiser(model, settings.compile)
        engine = self._start_engine(model, denoiser)
        measurement = self._measure(engine, model, denoiser, default_batch_key(held))
        store_threads = ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="objects")
        finisher = Finisher(model, settings.preview_side_px, settings.threads)
        energy = _energy_meter(model.device)
        runner = AttemptRunner(
            self.server.instance_id,
            held,
            engine,
            finisher,
            StartResolver(model, objects, store_threads, settings.donor_timeout_s),
            lambda order: _uploads(order, objects, store_threads),
            ExecutionLimits(settings.progress_interval_ms / 1000, settings.upload_timeout_s),
            energy.watts if energy is not None else lambda since, until: None,
        )
        engine.work_when_idle(lambda wanted: measurement.when_idle(lambda: wanted() or runner.running_count > 0))
        parts = (engine, finisher, runner, store_threads)
        return LoadedModel(held, model.info, model.device, *parts, settings.max_batch, energy)

    def _start_engine(self, model: DiffusionModel, denoiser: Denoiser) -> StepEngine:
        settings, scraped = self.settings, BusyMeter(time.monotonic)
        engine = StepEngine(
            model,
            EngineSettings(
                threads=settings.threads,
                max_batch=settings.max_batch,
                aging_limit_s=settings.aging_limit_s,
                preempt=settings.preempt,
                prompt_memo_entries=settings.prompt_memo_entries,
            ),
            EngineMetrics((self.busy, scraped)),
            denoiser,
        )
        metrics.QUEUE.set_function(lambda: engine.waiting_count)
        metrics.RUNNING.set_function(lambda: engine.running_count)
        metrics.BUSY_SHARE.set_function(scraped.share)
        engine.start()
        return engine

    def _measure(
        self, engine: StepEngine, model: DiffusionModel, denoiser: Denoiser, key: BatchKey
    ) -> BatchMeasurement:
        """Ready for its first request: memory measured, graphs compiled, on the engine's own thread."""
        budget = memory_budget_bytes(model.device, self.settings.memory_budget_mib)
        measurement = BatchMeasurement(model, denoiser, engine.limits, key, budget, self.settings.warm_up_s)
        engine.call(measurement.before_serving).result()
        return measurement

    def _join(self, backend: ModelSwitch, costs: tuple[ModelCost, ...]) -> None:
        """The fleet, and its plan."""
        controller = ControllerClient(open_channel(self.settings.controller_address, self.settings.channels))
        follower = PlanFollower(controller, self.server.instance_id, lambda wanted: self._assign(backend, wanted))
        self.registration = Registration(
            controller, lambda: self._replica(backend, costs), lambda: self._report(backend, follower)
        )
        self.registration.start()
        self.following = asyncio.get_running_loop().create_task(follower.run(), name="plan")

    def _assign(self, backend: ModelSwitch, wanted: WorkerAssignment) -> None:
        before = backend.target_model
        if wanted.model in self.models:
            backend.assign(wanted.model, wanted.max_batch_size)
        if backend.target_model != before and self.registration is not None:
            # The next plan is to know who is changing already.
            self.registration.report_soon()

    def _replica(self, backend: ModelSwitch, costs: tuple[ModelCost, ...]) -> Replica:
        return Replica(
            instance_id=self.server.instance_id,
            kind=ReplicaKind.UNET_WORKER,
            address=self.settings.advertise_address or self.server.bound_addresses[0],
            generation=self.generation,
            device=backend.device,
            device_memory_bytes=backend.memory().total_bytes,
            available_models=tuple(self.models),
            resident_models=(backend.target_model,),
            capabilities=backend.capabilities,
            costs=costs,
        )

    def _report(self, backend: ModelSwitch, follower: PlanFollower) -> ReplicaReport:
        credits = self.worker.credits()
        return ReplicaReport(
            instance_id=self.server.instance_id,
            generation=self.generation,
            resident_models=(backend.target_model,),
            queue_length=credits.queued_count,
            running_count=credits.running_count,
            busy_share=self.busy.share(),
            completed_count=self.worker.attempts.completed_count,
            failed_count=self.worker.attempts.failed_count,
            plan=follower.acknowledgement(backend.held.model_digest),
            draining=credits.draining,
        )


def wire(settings: UnetWorkerSettings) -> UnetWorkerProcess:
    """Call it inside the event loop that the process runs on. Raises InvalidArgument for two models of one name."""
    server = RpcServer(settings.rpc, "unet_worker")
    keys = open_grant_keys(settings.grant_key_file)
    grants = GrantGuard(keys, SystemClock(), open_to_all=settings.rpc.token_file is None)
    worker = UnetWorker(
        server.instance_id, settings.credits, settings.orphan_s, AttemptLimits(settings.max_prompt_chars), grants
    )
    server.add(add_UnetWorkerServiceServicer_to_server, UnetWorkerServicer(worker), FULL_NAME)
    return UnetWorkerProcess(server, worker, settings, checkpoints(settings), generation_at(SystemClock()))


def _denoiser(model: DiffusionModel, choice: CompileChoice) -> Denoiser:
    mode = CompileMode(choice.value)
    return EagerDenoiser(model) if mode is CompileMode.OFF else CompiledDenoiser(model, mode)


def _energy_meter(device: torch.device) -> EnergyMeter | None:
    """Started; None where the device does not tell."""
    counter = open_counter(device)
    if counter is None:
        return None
    meter = EnergyMeter(counter, metrics.ENERGY.inc)
    meter.start()
    return meter


def _uploads(order: ExecuteOrder, objects: ObjectStore, executor: Executor) -> Uploads | None:
    return Uploads(order.cache_grant, objects, executor) if order.cache_grant is not None else None
