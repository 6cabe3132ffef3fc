"""Client of the controller."""

from collections.abc import AsyncIterator

import grpc.aio

from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.api.controller.v1.controller_service_pb2_grpc import ControllerServiceStub
from pentimento.clients.errors import domain_errors
from pentimento.domain.fleet import Fleet, Plan, Replica, ReplicaLease, ReplicaReport
from pentimento.domain.generation import PlanVersion
from pentimento.wire.fleet import plan_from_proto, replica_to_proto
from pentimento.wire.generation import plan_version_to_proto
from pentimento.wire.reports import fleet_from_proto, lease_from_proto, report_to_proto


class ControllerClient:
    """Calls the controller: registration, heartbeats, plans and the fleet."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ControllerServiceStub(channel)

    async def register(self, replica: Replica, timeout_s: float | None = None) -> ReplicaLease:
        """Register the replica and return its lease."""
        request = pb.RegisterRequest(replica=replica_to_proto(replica))
        with domain_errors():
            return lease_from_proto(await self._stub.Register(request, timeout=timeout_s))

    async def report(self, report: ReplicaReport, timeout_s: float | None = None) -> int:
        """Send a heartbeat and return the leader's epoch. NotFound asks the replica to register anew."""
        with domain_errors():
            return (await self._stub.Report(report_to_proto(report), timeout=timeout_s)).leader_epoch

    async def deregister(self, instance_id: str, generation: int, timeout_s: float | None = None) -> None:
        """Take the replica out of the fleet."""
        request = pb.DeregisterRequest(instance_id=instance_id, generation=generation)
        with domain_errors():
            await self._stub.Deregister(request, timeout=timeout_s)

    async def watch_plan(self, instance_id: str, have: PlanVersion | None = None) -> AsyncIterator[Plan]:
        """Yield the plan in force, then each newer one; `have` leaves out what the caller holds already."""
        version = plan_version_to_proto(have) if have else None
        with domain_errors():
            async for message in self._stub.WatchPlan(pb.WatchPlanRequest(instance_id=instance_id, have=version)):
                yield plan_from_proto(message.plan)

    async def fleet(self, timeout_s: float | None = None) -> Fleet:
        """Return the fleet as the controller knows it."""
        with domain_errors():
            return fleet_from_proto(await self._stub.GetFleet(pb.GetFleetRequest(), timeout=timeout_s))
