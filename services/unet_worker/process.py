"""Run a worker's process for any device: serve, join the fleet, follow its plan, and drain."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from pentimento.api.components.v1.component_service_pb2_grpc import add_ComponentServiceServicer_to_server
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import add_UnetWorkerServiceServicer_to_server
from pentimento.clients.controller import ControllerClient
from pentimento.domain.adapters import Adapter
from pentimento.domain.clock import SystemClock
from pentimento.domain.components import HeldComponent, StoredBytes
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import (
    MAX_TOLD_COUNT,
    HeldModel,
    ModelCost,
    Plan,
    Replica,
    ReplicaKind,
    ReplicaReport,
    WorkerAssignment,
)
from pentimento.rpc import RpcServer, RpcServerSettings
from pentimento.rpc.settings import BOUNDS, ServerBounds
from pentimento.rpc.watched_file import kept_grant_keys
from pentimento.service.components import FULL_NAME as COMPONENTS_FULL_NAME
from pentimento.service.components import ComponentServicer, ReportedComponents, known_peers
from pentimento.service.credits import BusyMeter
from pentimento.service.fleet_member import FleetMember, FleetSettings, PlanFollower
from pentimento.service.process import ServiceProcess
from pentimento.stores.components.remote import Peers
from pentimento.stores.components.store import LocalComponents
from services.unet_worker.attempts.cache_objects import GrantGuard
from services.unet_worker.device_backend import DeviceBackend
from services.unet_worker.servicer import FULL_NAME, UnetWorkerServicer
from services.unet_worker.worker import UnetWorker

logger = logging.getLogger(__name__)

# How long an attempt survives its stream.
ORPHAN_S = 10.0
# How long a start waits for a cached object before it is noise, and a result for its uploads.
DONOR_TIMEOUT_S = 2.0
UPLOAD_TIMEOUT_S = 2.0
# Least change of a step's seconds, as a ratio, that the worker reports.
COST_CHANGE = 1.2


@dataclass(frozen=True)
class WorkerIdentity:
    """Identify one start of a worker. `busy` adds up its device's seconds; `changed` is called when its model or
    credits change; `components` are those on its host's disk, None for none."""

    instance_id: str
    generation: int
    busy: BusyMeter
    changed: Callable[[], None]
    components: LocalComponents | None = None


class WorkerModels(Protocol):
    """Describe the models that a device can hold; the first is held at the start."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def costs(self) -> tuple[ModelCost, ...]:
        """Return the known costs; raises the errors of an invalid profile."""

    def stored(self) -> tuple[StoredBytes, ...]:
        """Return the bytes of the models' files by tier, without unknown ones. On any thread."""

    async def serve(self, identity: WorkerIdentity) -> DeviceBackend:
        """Return the device with its first model, ready to serve. Called once."""

    def close(self) -> None:
        """Stop background work next to the device. Harmless before `serve`."""


class WorkerSettings(FleetSettings, Protocol):
    @property
    def rpc(self) -> RpcServerSettings: ...

    @property
    def grant_key_file(self) -> Path | None: ...


class WorkerProcess(ServiceProcess):
    """Run a worker. Create it inside its event loop. `credit_count` 0 means the device's batch limit."""

    def __init__(
        self,
        settings: WorkerSettings,
        models: WorkerModels,
        credit_count: int,
        open_components: Callable[[Peers], LocalComponents | None] = lambda peers: None,
        bounds: ServerBounds = BOUNDS,
    ) -> None:
        super().__init__(server=RpcServer(settings.rpc, "unet_worker", bounds=bounds))
        keys = kept_grant_keys(settings.grant_key_file) if settings.grant_key_file is not None else None
        grants = GrantGuard(keys, SystemClock(), open_to_all=settings.rpc.token_file is None)
        self.worker = UnetWorker(self.server.instance_id, credit_count, ORPHAN_S, grants)
        self.server.add(add_UnetWorkerServiceServicer_to_server, UnetWorkerServicer(self.worker), FULL_NAME)
        self._models = models
        # Model and LoRA, of the newest plan; of an uploaded LoRA also its digest.
        self._prefetched = frozenset[tuple[str, str, str]]()
        self._measured: dict[str, ModelCost] = {}
        self._member = FleetMember(self.server, ReplicaKind.UNET_WORKER, settings)
        self._components = open_components(known_peers(settings, self.server.instance_id))
        self._stored: tuple[StoredBytes, ...] = ()
        self._reported = ReportedComponents(self._look)
        if self._components is not None:
            fetches = ComponentServicer(self._components.store.read_range, lambda: bool(self.worker.attempts.running()))
            self.server.add(add_ComponentServiceServicer_to_server, fetches, COMPONENTS_FULL_NAME)
        self._identity = WorkerIdentity(
            self.server.instance_id,
            self._member.generation,
            BusyMeter(time.monotonic),
            self.worker.news.changed,
            self._components,
        )

    async def prepare(self) -> None:
        """Load the first model; with a controller, follow its plan from then on. Meanwhile the LoRAs that requests use
        most with it come to the disk."""
        costs = self._models.costs()
        if self._member.controller is not None:
            self.run_beside(self._reported.run, "components")
        if self._components is not None and self._member.controller is not None:
            self.run_beside(partial(self._fetch_most_used, self._member.controller, self._components), "most used")
        backend = await self._models.serve(self._identity)
        self.worker.serve(backend)
        if self._member.controller is not None:
            self._join(self._member.controller, backend, costs)

    async def finish(self) -> None:
        await self.worker.drain()

    async def close(self) -> None:
        self._models.close()
        await self.worker.close()

    def _join(self, controller: ControllerClient, backend: DeviceBackend, costs: tuple[ModelCost, ...]) -> None:
        """Join the fleet, and follow its plan."""
        follower = PlanFollower(controller, self.server.instance_id)
        self.registration = self._member.registration(
            lambda replica: self._describe(replica, backend, costs),
            lambda report: self._reported.added_to(self._report(report, backend, follower)),
            self._reported.news,
        )
        self.run_beside(partial(follower.run, lambda plan: self.follow(backend, plan)), "plan")

    def _look(self) -> Sequence[HeldComponent]:
        """Return the components on the disk, and note where the models are; on another thread."""
        self._stored = self._models.stored()
        return self._components.store.held() if self._components is not None else ()

    async def _fetch_most_used(self, controller: ControllerClient, components: LocalComponents) -> None:
        try:
            found = await controller.find_components(self.server.instance_id, model=self._models.names[0])
        except PentimentoError as error:
            logger.info("no LoRA is fetched ahead of need: %s", error.message)
            return
        await asyncio.to_thread(components.fetch_ahead, [one.object for one in found if one.object is not None])

    def follow(self, backend: DeviceBackend, plan: Plan) -> None:
        """Hold the model that the plan assigns to this worker, if the policy moves models, and prefetch the LoRAs that
        the plan names."""
        wanted = plan.assignment_of(self.server.instance_id)
        if wanted is None:
            return
        if plan.moves_models:
            self.assign(backend, wanted)
        # Only new entries of the plan: LoRAs evicted since then made way for requested ones.
        named = {one.adapter.name: one.adapter for one in plan.placements if one.adapter.object is not None}
        ahead = frozenset((wanted.model, name, named[name].digest if name in named else "") for name in wanted.prefetch)
        new, self._prefetched = sorted(name for _, name, _ in ahead - self._prefetched), ahead
        if new:
            uploaded = [named[name] for name in new if name in named]
            self.run_beside(partial(self._prefetch, backend, wanted.model, new, uploaded), "prefetch")

    async def _prefetch(
        self, backend: DeviceBackend, model: str, names: Collection[str], uploaded: Collection[Adapter]
    ) -> None:
        """Prefetch once the device holds the model that the LoRAs change; skip it if it is to hold another one by
        now."""
        await self.worker.news.until(lambda: backend.held.model == model or backend.target_model != model)
        held = backend.held
        if held.model == model:
            fitting = [one for one in uploaded if one.changes(held.model_digest, held.family)]
            await backend.prefetch(names, fitting)

    def assign(self, backend: DeviceBackend, wanted: WorkerAssignment) -> None:
        """Hold the model that the plan assigns. An unknown model is ignored: plans are intent."""
        before = backend.target_model
        if wanted.model in self._models.names:
            backend.assign(wanted.model, wanted.max_batch_size)
        if backend.target_model != before and self.registration is not None:
            # The next plan must know that this worker is already changing.
            self.registration.report_soon()

    def _describe(self, replica: Replica, backend: DeviceBackend, costs: tuple[ModelCost, ...]) -> Replica:
        changes = backend.changes
        return replace(
            replica,
            device=backend.device,
            device_memory_bytes=backend.memory().total_bytes,
            # A model that cannot be loaded here would be planned, and waited for, forever.
            available_models=tuple(name for name in self._models.names if name not in changes.unloadable),
            resident_models=self._resident(backend),
            held_model_digest=_held_digest(backend),
            capabilities=backend.capabilities,
            costs=self._with_measured(costs, backend),
            adapters=backend.adapters.first(MAX_TOLD_COUNT).known,
            weights=changes.weights,
            short_models=changes.short_models,
            change=changes.change,
            stored=(*self._stored, *backend.adapters.stored)[:MAX_TOLD_COUNT],
            adapter_memory_bytes=backend.adapters.memory_bytes,
        )

    def _with_measured(self, costs: tuple[ModelCost, ...], backend: DeviceBackend) -> tuple[ModelCost, ...]:
        """Return the costs, with those of held models without a profile: a policy can plan by a step of one image until
        a profile exists. The load seconds are those of this worker's last load."""
        held, changes = backend.held, backend.changes
        cost = estimated_cost(held, changes.step_s, self._measured.get(held.model))
        if cost is not None:
            self._measured[held.model] = cost
        profiled = {cost.model for cost in costs}
        known = (*costs, *(cost for name, cost in sorted(self._measured.items()) if name not in profiled))
        return tuple(replace(cost, load_s=changes.load_s.get(cost.model, cost.load_s)) for cost in known)

    def _report(self, report: ReplicaReport, backend: DeviceBackend, follower: PlanFollower) -> ReplicaReport:
        credits = self.worker.credits()
        return replace(
            report,
            resident_models=self._resident(backend),
            held_model_digest=_held_digest(backend),
            queue_length=credits.queued_count,
            running_count=credits.running_count,
            busy_share=self._identity.busy.share(),
            completed_count=self.worker.attempts.completed_count,
            failed_count=self.worker.attempts.failed_count,
            plan_version=follower.plan.version if follower.plan is not None else None,
            draining=credits.draining,
            load_speeds=backend.changes.load_speeds,
            lora_speeds=backend.adapters.speeds,
        )

    def _resident(self, backend: DeviceBackend) -> tuple[str, ...]:
        """Return the model, then the LoRAs that need no load, up to the controller's limit. A LoRA with a model's name
        is skipped: it would be taken for that model."""
        loras = backend.adapters.first(MAX_TOLD_COUNT - 1).resident
        return (backend.target_model, *(name for name in loras if name not in self._models.names))


def estimated_cost(held: HeldModel, step_s: float, reported: ModelCost | None) -> ModelCost | None:
    """Return the cost of the model by a step of one image: the `reported` one if it differs by less than COST_CHANGE,
    since each change is a registration. None if no step was measured."""
    run_s = step_s * held.default_steps
    if not run_s or (reported is not None and 1 / COST_CHANGE < run_s / reported.run_s[0][1] < COST_CHANGE):
        return reported
    return ModelCost(held.model, ((1, run_s),), step_count=held.default_steps, estimated=True)


def _held_digest(backend: DeviceBackend) -> str:
    return backend.held.model_digest if backend.held.model == backend.target_model else ""
