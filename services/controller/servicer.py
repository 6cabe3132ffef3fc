"""pentimento.api.controller.v1 over the controller."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc.aio

from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.api.controller.v1.controller_service_pb2_grpc import ControllerServiceServicer
from pentimento.wire.fleet import replica_from_proto
from pentimento.wire.generation import plan_version_from_proto
from pentimento.wire.plans import plan_to_proto
from pentimento.wire.reports import fleet_to_proto, lease_to_proto, report_from_proto
from services.controller.controller import Controller

FULL_NAME = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name


class ControllerServicer(ControllerServiceServicer):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def Register(
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.RegisterResponse]
    ) -> pb.RegisterResponse:
        return lease_to_proto(self._controller.register(replica_from_proto(request.replica)))

    async def Report(
        self, request: pb.ReportRequest, context: grpc.aio.ServicerContext[pb.ReportRequest, pb.ReportResponse]
    ) -> pb.ReportResponse:
        return pb.ReportResponse(leader_epoch=self._controller.report(report_from_proto(request)))

    async def Deregister(
        self,
        request: pb.DeregisterRequest,
        context: grpc.aio.ServicerContext[pb.DeregisterRequest, pb.DeregisterResponse],
    ) -> pb.DeregisterResponse:
        self._controller.deregister(request.instance_id, request.generation)
        return pb.DeregisterResponse()

    async def WatchPlan(
        self, request: pb.WatchPlanRequest, context: grpc.aio.ServicerContext[pb.WatchPlanRequest, pb.WatchPlanResponse]
    ) -> AsyncIterator[pb.WatchPlanResponse]:
        have = plan_version_from_proto(request.have) if request.HasField("have") else None
        async with aclosing(self._controller.watch(have)) as plans:
            async for plan in plans:
                yield pb.WatchPlanResponse(plan=plan_to_proto(plan))

    async def GetFleet(
        self, request: pb.GetFleetRequest, context: grpc.aio.ServicerContext[pb.GetFleetRequest, pb.GetFleetResponse]
    ) -> pb.GetFleetResponse:
        return fleet_to_proto(self._controller.fleet())
