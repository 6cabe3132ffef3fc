"""Puts a controller process together."""

from dataclasses import dataclass

from pentimento.api.controller.v1.controller_service_pb2_grpc import add_ControllerServiceServicer_to_server
from pentimento.domain.clock import SystemClock
from pentimento.rpc import RpcServer
from pentimento.service.process import ServiceProcess
from services.controller.controller import Controller, ControllerTimes
from services.controller.epoch import LeaderEpoch
from services.controller.plan_feed import PlanFeed
from services.controller.planner import Planner
from services.controller.registry import Registry
from services.controller.servicer import FULL_NAME, ControllerServicer
from services.controller.settings import ControllerSettings

# Every replica that lived through a restart has registered again after two leases.
LEASES_TO_SETTLE = 2
REPORTS_A_LEASE = 3
# A look at the demand between two reports would see none.
REPORTS_A_LOOK = 2


@dataclass(kw_only=True)
class ControllerProcess(ServiceProcess):
    controller: Controller

    async def prepare(self) -> None:
        self.run_beside(self.controller.run(), "planning")

    async def finish(self) -> None:
        self.controller.close()


def wire(settings: ControllerSettings) -> ControllerProcess:
    """Call it inside the event loop that the process runs on."""
    clock = SystemClock()
    epoch = LeaderEpoch(settings.state_dir, int(clock.wall() * 1000))
    times = ControllerTimes(
        lease_s=settings.lease_s,
        report_interval_s=settings.lease_s / REPORTS_A_LEASE,
        plan_interval_s=max(settings.plan_interval_s, REPORTS_A_LOOK * settings.lease_s / REPORTS_A_LEASE),
        settle_s=settings.lease_s * LEASES_TO_SETTLE,
        calm_s=settings.lease_s,
    )
    registry = Registry(settings.lease_s, settings.retention_s, settings.max_replicas)
    planner = Planner(settings.policy(), epoch.value, settings.allocator_limit_s)
    controller = Controller(registry, planner, PlanFeed(settings.max_watchers), epoch, times, clock)
    server = RpcServer(settings.rpc, "controller")
    server.add(add_ControllerServiceServicer_to_server, ControllerServicer(controller), FULL_NAME)
    return ControllerProcess(server=server, controller=controller)
