"""A worker's process, whatever its device: it serves, joins the fleet, follows its plan, and drains."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import add_UnetWorkerServiceServicer_to_server
from pentimento.clients.controller import ControllerClient
from pentimento.clients.registration import Registration, generation_at
from pentimento.domain.clock import SystemClock
from pentimento.domain.fleet import ModelCost, Replica, ReplicaKind, ReplicaReport, WorkerAssignment
from pentimento.rpc import RpcServer, open_channel
from pentimento.rpc.grant_keys import open_grant_keys
from services.unet_worker.attempts.validation import AttemptLimits
from services.unet_worker.cache.grants import GrantGuard
from services.unet_worker.device.busy import BusyMeter
from services.unet_worker.device.device_backend import PlannedBackend
from services.unet_worker.models.plan_following import PlanFollower
from services.unet_worker.servicer import FULL_NAME, UnetWorkerServicer
from services.unet_worker.settings import EmulatedWorkerSettings, UnetWorkerSettings
from services.unet_worker.worker import UnetWorker


@dataclass(frozen=True)
class WorkerIdentity:
    """Of one start of a worker. `busy` adds up the seconds of its device, `changed` is called when what it holds or
    takes changes."""

    instance_id: str
    generation: int
    busy: BusyMeter
    changed: Callable[[], None]


class WorkerModels(Protocol):
    """The models that a device can hold; the first is held at first."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def costs(self) -> tuple[ModelCost, ...]:
        """What is known of them; raises what is wrong with a file that says it."""
        ...

    async def serve(self, identity: WorkerIdentity) -> PlannedBackend:
        """Return the device with its first model, ready to serve. Called once."""
        ...

    def close(self) -> None:
        """Stop what runs beside the device. Harmless before `serve`."""
        ...


class WorkerProcess:
    """Construct it inside the event loop that it runs on. `credit_count` 0 is what the device can take."""

    def __init__(
        self,
        settings: UnetWorkerSettings | EmulatedWorkerSettings,
        models: WorkerModels,
        credit_count: int,
    ) -> None:
        self.server = RpcServer(settings.rpc, "unet_worker")
        grants = GrantGuard(
            open_grant_keys(settings.grant_key_file), SystemClock(), open_to_all=settings.rpc.token_file is None
        )
        limits = AttemptLimits(settings.max_prompt_chars)
        self.worker = UnetWorker(self.server.instance_id, credit_count, settings.orphan_s, limits, grants)
        self.server.add(add_UnetWorkerServiceServicer_to_server, UnetWorkerServicer(self.worker), FULL_NAME)
        self._settings = settings
        self._models = models
        self._identity = WorkerIdentity(
            self.server.instance_id,
            generation_at(SystemClock()),
            BusyMeter(time.monotonic),
            self.worker.capacity.changed,
        )
        self._registration: Registration | None = None
        self._following: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            await self.server.run_until_stopped(self.warm, self.drain)
        finally:
            await self.close()

    async def warm(self) -> None:
        """Load, and join the fleet. Health is answered meanwhile."""
        costs = self._models.costs()
        backend = await self._models.serve(self._identity)
        self.worker.serve(backend)
        if self._settings.controller_address:
            self._join(backend, costs)

    async def drain(self) -> None:
        if self._following is not None:
            self._following.cancel()
        await self.worker.drain()
        if self._registration is not None:
            await self._registration.close()

    async def close(self) -> None:
        """Stops what is left; takes at most a step."""
        self._models.close()
        if self._following is not None:
            self._following.cancel()
        await self.worker.close()

    def _join(self, backend: PlannedBackend, costs: tuple[ModelCost, ...]) -> None:
        """The fleet, and its plan."""
        controller = ControllerClient(open_channel(self._settings.controller_address, self._settings.channels))
        follower = PlanFollower(controller, self.server.instance_id, lambda wanted: self.assign(backend, wanted))
        self._registration = Registration(
            controller, lambda: self._replica(backend, costs), lambda: self._report(backend, follower)
        )
        self._registration.start()
        self._following = asyncio.get_running_loop().create_task(follower.run(), name="plan")

    def assign(self, backend: PlannedBackend, wanted: WorkerAssignment) -> None:
        """Have the device hold what the plan wants. A stranger is left alone: plans are intent."""
        before = backend.target_model
        if wanted.model in self._models.names:
            backend.assign(wanted.model, wanted.max_batch_size)
        if backend.target_model != before and self._registration is not None:
            # The next plan is to know who is changing already.
            self._registration.report_soon()

    def _replica(self, backend: PlannedBackend, costs: tuple[ModelCost, ...]) -> Replica:
        return Replica(
            instance_id=self._identity.instance_id,
            kind=ReplicaKind.UNET_WORKER,
            address=self._settings.advertise_address or self.server.bound_addresses[0],
            generation=self._identity.generation,
            device=backend.device,
            device_memory_bytes=backend.memory().total_bytes,
            available_models=self._models.names,
            resident_models=(backend.target_model,),
            capabilities=backend.capabilities,
            costs=costs,
        )

    def _report(self, backend: PlannedBackend, follower: PlanFollower) -> ReplicaReport:
        credits = self.worker.credits()
        return ReplicaReport(
            instance_id=self._identity.instance_id,
            generation=self._identity.generation,
            resident_models=(backend.target_model,),
            queue_length=credits.queued_count,
            running_count=credits.running_count,
            busy_share=self._identity.busy.share(),
            completed_count=self.worker.attempts.completed_count,
            failed_count=self.worker.attempts.failed_count,
            plan=follower.acknowledgement(backend.held.model_digest),
            draining=credits.draining,
        )
