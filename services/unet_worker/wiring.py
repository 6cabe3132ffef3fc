"""Puts a worker process together."""

import asyncio
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

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
from pentimento.diffusion.families import DiffusionModel, load_model
from pentimento.diffusion.weights import quiet_loaders
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import HeldModel, Replica, ReplicaKind, ReplicaReport
from pentimento.rpc import RpcServer, open_channel
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.worker.v1.unet_worker_service_pb2_grpc import add_UnetWorkerServiceServicer_to_server
from services.unet_worker import metrics
from services.unet_worker.busy import BusyMeter
from services.unet_worker.device import (
    choose_device,
    choose_dtype,
    memory_budget_bytes,
)
from services.unet_worker.energy import EnergyMeter, open_counter
from services.unet_worker.engine_metrics import EngineMetrics
from services.unet_worker.execution import AttemptRunner, ExecutionLimits
from services.unet_worker.finishing import Finisher
from services.unet_worker.loaded import LoadedModel
from services.unet_worker.loop_lag import LoopLagProbe
from services.unet_worker.model_card import default_batch_key, held_model, model_costs
from services.unet_worker.order import ExecuteOrder
from services.unet_worker.servicer import FULL_NAME, UnetWorkerServicer
from services.unet_worker.settings import CompileChoice, UnetWorkerSettings
from services.unet_worker.starts import StartResolver
from services.unet_worker.uploads import Uploads
from services.unet_worker.validation import Limits
from services.unet_worker.warm_up import prepare_denoiser, warm_up
from services.unet_worker.worker import UnetWorker

# Object store traffic waits for others, not for this process; the threads only bound how much of it is under way.
STORE_THREADS = 4


@dataclass
class UnetWorkerProcess:
    """`registration` is None without a controller."""

    server: RpcServer
    worker: UnetWorker
    settings: UnetWorkerSettings
    generation: int
    busy: BusyMeter = field(default_factory=lambda: BusyMeter(time.monotonic))
    lag: LoopLagProbe = field(default_factory=lambda: LoopLagProbe(metrics.LOOP_LAG_SECONDS.observe))
    registration: Registration | None = None

    async def run(self) -> None:
        try:
            await self.server.run_until_stopped(self.warm, self.drain)
        finally:
            await self.close()

    async def close(self) -> None:
        """Stops what is left; takes at most a step."""
        self.lag.close()
        await self.worker.close()

    async def warm(self) -> None:
        """Load, measure and compile off the event loop, so that health is answered meanwhile."""
        loaded = await asyncio.to_thread(self._load)
        await warm_up(loaded.runner, loaded.held)
        self.lag.start()
        self.worker.serve(loaded)
        if self.settings.controller_address:
            self.registration = self._register(loaded)
            self.registration.start()

    async def drain(self) -> None:
        await self.worker.drain()
        if self.registration is not None:
            await self.registration.close()

    def _load(self) -> LoadedModel:
        objects = open_objects(self.settings.objects_url)
        torch.set_num_threads(self.settings.threads)
        quiet_loaders()
        device = choose_device(self.settings.device)
        model = load_model(self.settings.model, device, choose_dtype(self.settings.dtype, device))
        return self._assemble(model, objects)

    def _assemble(self, model: DiffusionModel, objects: ObjectStore) -> LoadedModel:
        settings = self.settings
        held = held_model(model.info, settings, self.generation)
        denoiser = _denoiser(model, settings.compile)
        engine = self._start_engine(model, denoiser, held)
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
        limit = engine.limits.limit(default_batch_key(held))
        costs = model_costs(held, settings.profiles, limit)
        return LoadedModel(held, model.info, model.device, engine, finisher, runner, store_threads, energy, costs)

    def _start_engine(self, model: DiffusionModel, denoiser: Denoiser, held: HeldModel) -> StepEngine:
        """Ready for its first request: memory measured, graphs compiled, on the engine's own thread."""
        settings, scraped = self.settings, BusyMeter(time.monotonic)
        engine = StepEngine(
            model,
            EngineSettings(
                threads=settings.threads,
                max_batch=settings.max_batch,
                patience_s=settings.patience_s,
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
        key = default_batch_key(held)
        budget = memory_budget_bytes(model.device, settings.memory_budget_mib)
        engine.call(lambda: prepare_denoiser(model, denoiser, engine.limits, key, budget)).result()
        return engine

    def _register(self, loaded: LoadedModel) -> Registration:
        channel = open_channel(self.settings.controller_address, self.settings.channels)
        return Registration(ControllerClient(channel), lambda: self._replica(loaded), lambda: self._report(loaded.held))

    def _replica(self, loaded: LoadedModel) -> Replica:
        return Replica(
            instance_id=self.server.instance_id,
            kind=ReplicaKind.UNET_WORKER,
            address=self.settings.advertise_address or self.server.bound_addresses[0],
            generation=self.generation,
            device=loaded.device,
            device_memory_bytes=loaded.memory().total_bytes,
            available_models=(loaded.held.model,),
            resident_models=(loaded.held.model,),
            capabilities=loaded.capabilities,
            costs=loaded.costs,
        )

    def _report(self, held: HeldModel) -> ReplicaReport:
        credits = self.worker.credits()
        return ReplicaReport(
            instance_id=self.server.instance_id,
            generation=self.generation,
            resident_models=(held.model,),
            queue_length=credits.queued_count,
            running_count=credits.running_count,
            busy_share=self.busy.share(),
            completed_count=self.worker.attempts.completed_count,
            failed_count=self.worker.attempts.failed_count,
            draining=credits.draining,
        )


def wire(settings: UnetWorkerSettings) -> UnetWorkerProcess:
    """Call it inside the event loop that the process runs on."""
    server = RpcServer(settings.rpc, "unet_worker")
    worker = UnetWorker(server.instance_id, settings.credits, settings.orphan_s, Limits(settings.max_prompt_chars))
    server.add(add_UnetWorkerServiceServicer_to_server, UnetWorkerServicer(worker), FULL_NAME)
    return UnetWorkerProcess(server, worker, settings, generation_at(SystemClock()))


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
