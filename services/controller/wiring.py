"""Construct a controller process."""

import math
import signal
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pentimento.api.adapters.v1.adapter_registry_service_pb2_grpc import add_AdapterRegistryServiceServicer_to_server
from pentimento.api.controller.v1.controller_service_pb2_grpc import add_ControllerServiceServicer_to_server
from pentimento.api.keda.externalscaler_pb2_grpc import add_ExternalScalerServicer_to_server
from pentimento.api.models.v1.model_repository_service_pb2_grpc import add_ModelRepositoryServiceServicer_to_server
from pentimento.domain.clock import SystemClock, epoch_at
from pentimento.policies.plan.registry import ServingPolicy, registered_cascade
from pentimento.rpc import RpcServer
from pentimento.rpc.access import ANY_TOKEN
from pentimento.service.lease import LedgerLease
from pentimento.service.process import ServiceProcess
from pentimento.stores.objects import open_objects
from services.controller.controller import Controller
from services.controller.leadership import LeaderEpoch, Leadership
from services.controller.planner import ALLOCATOR_LIMIT_S, Planner
from services.controller.registry import Registry
from services.controller.repository import ModelRepository
from services.controller.scaler import Scaler
from services.controller.servicers import (
    ADAPTERS_FULL_NAME,
    FULL_NAME,
    MODELS_FULL_NAME,
    SCALER_FULL_NAME,
    AdapterRegistryServicer,
    ControllerServicer,
    KedaScalerServicer,
    ModelRepositoryServicer,
)
from services.controller.settings import ControllerSettings

if TYPE_CHECKING:
    from pentimento.stores.ledger.fleet_ledger import FleetLedger
    from services.controller.uploads import UploadedAdapters


@dataclass(kw_only=True)
class ControllerProcess(ServiceProcess):
    """Run a controller. Without a ledger `leadership` is None, and this controller leads. A standby waits in `prepare`
    until it leads."""

    controller: Controller
    epoch: LeaderEpoch
    repository: ModelRepository
    leadership: Leadership | None = None
    uploads: "UploadedAdapters | None" = None
    scaler_server: RpcServer | None = None
    standby: bool = False

    async def prepare(self) -> None:
        if self.leadership is not None:
            begun = await self.leadership.begin(self.standby)
            await self.repository.load()
            if self.uploads is not None:
                # A leader accepts uploads, so it loads the store's id and the registered LoRAs first.
                await self.uploads.load()
            self.controller.lead(*begun)
            self.run_beside(
                partial(self.leadership.lease.hold, lambda: self.epoch.value, self._on_superseded), "leading"
            )
        if self.uploads is not None:
            self.run_beside(self.uploads.run, "uploads")
        self.run_beside(self.controller.run, "planning")
        if self.scaler_server is not None:
            await self.scaler_server.start()
            self.scaler_server.set_serving()

    async def finish(self) -> None:
        self.controller.close()

    async def close(self) -> None:
        if self.scaler_server is not None:
            await self.scaler_server.stop()

    def _on_superseded(self) -> None:
        """End the process, since another controller leads: started again, it waits for the lead."""
        self.controller.close()
        signal.raise_signal(signal.SIGTERM)


def wire(
    settings: ControllerSettings, ledger: "FleetLedger | None" = None, allocator_limit_s: float = ALLOCATOR_LIMIT_S
) -> ControllerProcess:
    """Construct the process. Call it inside the event loop that the process runs on. The caller closes the ledger."""
    clock = SystemClock()
    server = RpcServer(settings.rpc, "controller")
    epoch, leadership = LeaderEpoch(lambda: epoch_at(clock.wall())), None
    if ledger is not None:
        lease = LedgerLease(ledger, server.instance_id, settings.lease_s)
        leadership = Leadership(ledger, lease, server.instance_id, clock)
        epoch = LeaderEpoch(lambda: epoch_at(clock.wall()), leadership.rise)
    planner = Planner(settings.policy(), epoch.value, allocator_limit_s, settings.scaled_models)
    scaler = Scaler(settings.serving.slo_s or math.inf, clock.monotonic) if settings.scaler_listen else None
    repository = ModelRepository(
        ledger, lambda: planner.follow(_policy(settings, repository)), settings.promise.of_reuse
    )
    controller = Controller(
        Registry(settings.lease_s),
        planner,
        epoch,
        settings.plan_interval_s,
        clock,
        leads=leadership is None,
        keep=leadership.keep if leadership is not None else None,
        repository=repository,
        slo_s=settings.serving.slo_s,
        scaler=scaler,
    )
    uploads = _uploads(settings, ledger, controller, repository)
    disk_bytes = settings.component_disk_mib * 2**20
    models = ModelRepositoryServicer(repository, uploads, disk_bytes, controller.check_leading)
    adapters = AdapterRegistryServicer(uploads, controller.check_leading)
    server.add(add_ControllerServiceServicer_to_server, ControllerServicer(controller), FULL_NAME)
    server.add(add_ModelRepositoryServiceServicer_to_server, models, MODELS_FULL_NAME)
    server.add(add_AdapterRegistryServiceServicer_to_server, adapters, ADAPTERS_FULL_NAME)
    return ControllerProcess(
        server=server,
        controller=controller,
        epoch=epoch,
        repository=repository,
        leadership=leadership,
        uploads=uploads,
        scaler_server=_scaler_server(settings, scaler) if scaler is not None else None,
        standby=settings.standby,
    )


def _scaler_server(settings: ControllerSettings, scaler: Scaler) -> RpcServer:
    """Return the server of the scaler, with the TLS of this process's others. KEDA has no token: a caller that
    reaches it, with a certificate where TLS is mutual, may read numbers of replicas."""
    rpc = replace(
        settings.rpc, listen=settings.scaler_listen, token_file=None, metrics_listen="", tls_callers_file=None
    )
    server = RpcServer(rpc, "controller-scaler")
    server.add(add_ExternalScalerServicer_to_server, KedaScalerServicer(scaler), SCALER_FULL_NAME, ANY_TOKEN)
    return server


def _policy(settings: ControllerSettings, repository: ModelRepository) -> ServingPolicy:
    """Return the policy: the settings' cascade once it is registered, else their allocator, with the registered
    hand-over from its light to its heavy model, if any."""
    serving = settings.serving.serving()
    if (cascade := repository.cascade(settings.cascade)) is not None:
        return registered_cascade(serving, cascade)
    pair = repository.cascade(f"{serving.light}>{serving.heavy}")
    return settings.policy(pair.handovers[0] if pair is not None else None)


def _uploads(
    settings: ControllerSettings, ledger: "FleetLedger | None", controller: Controller, repository: ModelRepository
) -> "UploadedAdapters | None":
    if ledger is None or not settings.objects_url:
        return None
    from services.controller.uploads import MAX_LORA_BYTES, UploadedAdapters

    return UploadedAdapters(
        ledger,
        open_objects(settings.objects_url),
        MAX_LORA_BYTES,
        controller.name_uploaded,
        model_digests=lambda: repository.stored_digests,
    )
