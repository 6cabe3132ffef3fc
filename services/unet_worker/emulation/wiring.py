"""Puts an emulated worker together: the real worker, but for its backend."""

import asyncio
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import add_UnetWorkerServiceServicer_to_server
from pentimento.clients.controller import ControllerClient
from pentimento.clients.registration import Registration, generation_at
from pentimento.devices.emulation import EmulatedDevices, EmulatedFleet, largest_batch, read_fleet
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import Replica, ReplicaKind, ReplicaReport, WorkerAssignment
from pentimento.emulation.device import DeviceSettings
from pentimento.rpc import RpcServer, open_channel
from pentimento.rpc.grant_keys import open_grant_keys
from pentimento.stores.objects import open_objects
from services.unet_worker import metrics
from services.unet_worker.attempts.validation import AttemptLimits
from services.unet_worker.cache.grants import GrantGuard
from services.unet_worker.device.busy import BusyMeter
from services.unet_worker.emulation.backend import EmulatedBackend, EmulatedLimits
from services.unet_worker.emulation.model import model_cost
from services.unet_worker.models.plan_following import PlanFollower
from services.unet_worker.servicer import FULL_NAME, UnetWorkerServicer
from services.unet_worker.settings import EmulatedWorkerSettings
from services.unet_worker.worker import UnetWorker

STORE_THREADS = 2


@dataclass
class EmulatedWorkerProcess:
    """`registration` and `following` are None without a controller."""

    server: RpcServer
    worker: UnetWorker
    settings: EmulatedWorkerSettings
    fleet: EmulatedFleet
    devices: EmulatedDevices
    generation: int
    busy: BusyMeter = field(default_factory=lambda: BusyMeter(time.monotonic))
    registration: Registration | None = None
    following: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            await self.server.run_until_stopped(self.warm, self.drain)
        finally:
            await self.close()

    async def warm(self) -> None:
        """There is nothing to load but a recording."""
        backend = self._backend()
        metrics.QUEUE.set_function(lambda: backend.emulated.waiting_count)
        metrics.RUNNING.set_function(lambda: backend.emulated.running_count)
        self.worker.serve(backend)
        if self.settings.controller_address:
            self._join(backend)

    async def drain(self) -> None:
        if self.following is not None:
            self.following.cancel()
        await self.worker.drain()
        if self.registration is not None:
            await self.registration.close()

    async def close(self) -> None:
        """Stops what is left."""
        if self.following is not None:
            self.following.cancel()
        await self.worker.close()

    def _backend(self) -> EmulatedBackend:
        settings = self.settings
        return EmulatedBackend(
            (self.server.instance_id, self.generation),
            self.fleet,
            self.devices,
            open_objects(settings.objects_url),
            ThreadPoolExecutor(STORE_THREADS, thread_name_prefix="objects"),
            EmulatedLimits(settings.progress_interval_ms / 1000, settings.donor_timeout_s, settings.upload_timeout_s),
            DeviceSettings(
                self.fleet.step_batching, self.fleet.preempt, aging_limit_s=settings.aging_limit_s, each_step=True
            ),
            self.busy,
            self.worker.capacity.changed,
            random.Random(f"{self.fleet.seed} {self.server.instance_id}"),
        )

    def _join(self, backend: EmulatedBackend) -> None:
        """The fleet, and its plan."""
        controller = ControllerClient(open_channel(self.settings.controller_address, self.settings.channels))
        follower = PlanFollower(controller, self.server.instance_id, lambda wanted: self._assign(backend, wanted))
        self.registration = Registration(
            controller, lambda: self._replica(backend), lambda: self._report(backend, follower)
        )
        self.registration.start()
        self.following = asyncio.get_running_loop().create_task(follower.run(), name="plan")

    def _assign(self, backend: EmulatedBackend, wanted: WorkerAssignment) -> None:
        before = backend.target_model
        backend.assign(wanted.model, wanted.max_batch_size)
        if backend.target_model != before and self.registration is not None:
            # The next plan is to know who is changing already.
            self.registration.report_soon()

    def _replica(self, backend: EmulatedBackend) -> Replica:
        return Replica(
            instance_id=self.server.instance_id,
            kind=ReplicaKind.UNET_WORKER,
            address=self.settings.advertise_address or self.server.bound_addresses[0],
            generation=self.generation,
            device=backend.device,
            device_memory_bytes=backend.memory().total_bytes,
            available_models=self.devices.models,
            resident_models=(backend.target_model,),
            capabilities=backend.capabilities,
            costs=tuple(model_cost(self.fleet.model(name), self.devices) for name in self.devices.models),
        )

    def _report(self, backend: EmulatedBackend, follower: PlanFollower) -> ReplicaReport:
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


def wire(settings: EmulatedWorkerSettings) -> EmulatedWorkerProcess:
    """Call it inside the event loop that the process runs on. Raises what is wrong with the fleet's file."""
    fleet = read_fleet(settings.fleet)
    devices = fleet.devices_named(settings.devices)
    server = RpcServer(settings.rpc, "unet_worker")
    credits = settings.credits or (0 if fleet.step_batching else _one_batch(fleet, devices))
    keys = open_grant_keys(settings.grant_key_file)
    grants = GrantGuard(keys, SystemClock(), open_to_all=settings.rpc.token_file is None)
    worker = UnetWorker(
        server.instance_id, credits, settings.orphan_s, AttemptLimits(settings.max_prompt_chars), grants
    )
    server.add(add_UnetWorkerServiceServicer_to_server, UnetWorkerServicer(worker), FULL_NAME)
    return EmulatedWorkerProcess(server, worker, settings, fleet, devices, generation_at(SystemClock()))


def _one_batch(fleet: EmulatedFleet, devices: EmulatedDevices) -> int:
    """Where whole requests are batched, whoever waits at a worker could not join there, and would elsewhere."""
    return min(largest_batch(fleet.model(name), devices) for name in devices.models)
