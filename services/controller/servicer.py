"""pentimento.api.controller.v1 over the controller, pentimento.api.models.v1 over its model repository."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import grpc.aio

from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.api.controller.v1.controller_service_pb2_grpc import ControllerServiceServicer
from pentimento.api.models.v1 import model_repository_service_pb2 as models_pb
from pentimento.api.models.v1.model_repository_service_pb2_grpc import ModelRepositoryServiceServicer
from pentimento.domain.fleet import Replica, ReplicaReport
from pentimento.domain.generation import PlanVersion
from pentimento.domain.models import CascadeVariant, ModelVariant
from pentimento.wire.codec import decode, encode, nested
from services.controller.controller import Controller
from services.controller.models.repository import ModelRepository

MODELS_FULL_NAME = models_pb.DESCRIPTOR.services_by_name["ModelRepositoryService"].full_name
FULL_NAME = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name


class ControllerServicer(ControllerServiceServicer):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def Register(
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.RegisterResponse]
    ) -> pb.RegisterResponse:
        return encode(self._controller.register(decode(request.replica, Replica, "replica")), pb.RegisterResponse)

    async def Report(
        self, request: pb.ReportRequest, context: grpc.aio.ServicerContext[pb.ReportRequest, pb.ReportResponse]
    ) -> pb.ReportResponse:
        return pb.ReportResponse(leader_epoch=self._controller.report(decode(request, ReplicaReport)))

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
        have = decode(request.have, PlanVersion, "have") if request.HasField("have") else None
        async with aclosing(self._controller.watch(have)) as plans:
            async for plan in plans:
                yield pb.WatchPlanResponse(plan=nested(plan, pb.Plan))

    async def GetFleet(
        self, request: pb.GetFleetRequest, context: grpc.aio.ServicerContext[pb.GetFleetRequest, pb.GetFleetResponse]
    ) -> pb.GetFleetResponse:
        return encode(self._controller.fleet(), pb.GetFleetResponse)


class ModelRepositoryServicer(ModelRepositoryServiceServicer):
    """`check_leading` raises where another controller is to be asked."""

    def __init__(self, repository: ModelRepository, check_leading: Callable[[], None]) -> None:
        self._repository = repository
        self._check_leading = check_leading

    async def RegisterModel(
        self,
        request: models_pb.RegisterModelRequest,
        context: grpc.aio.ServicerContext[models_pb.RegisterModelRequest, models_pb.RegisterModelResponse],
    ) -> models_pb.RegisterModelResponse:
        self._check_leading()
        await self._repository.register_model(decode(request.model, ModelVariant, "model"))
        return models_pb.RegisterModelResponse()

    async def RemoveModel(
        self,
        request: models_pb.RemoveModelRequest,
        context: grpc.aio.ServicerContext[models_pb.RemoveModelRequest, models_pb.RemoveModelResponse],
    ) -> models_pb.RemoveModelResponse:
        self._check_leading()
        await self._repository.remove_model(request.name)
        return models_pb.RemoveModelResponse()

    async def RegisterCascade(
        self,
        request: models_pb.RegisterCascadeRequest,
        context: grpc.aio.ServicerContext[models_pb.RegisterCascadeRequest, models_pb.RegisterCascadeResponse],
    ) -> models_pb.RegisterCascadeResponse:
        self._check_leading()
        cascade = await self._repository.register_cascade(
            decode(request.cascade, CascadeVariant, "cascade"), tuple(request.handover_profiles)
        )
        return models_pb.RegisterCascadeResponse(cascade=nested(cascade, models_pb.CascadeVariant))

    async def RemoveCascade(
        self,
        request: models_pb.RemoveCascadeRequest,
        context: grpc.aio.ServicerContext[models_pb.RemoveCascadeRequest, models_pb.RemoveCascadeResponse],
    ) -> models_pb.RemoveCascadeResponse:
        self._check_leading()
        await self._repository.remove_cascade(request.name)
        return models_pb.RemoveCascadeResponse()

    async def ListRegistered(
        self,
        request: models_pb.ListRegisteredRequest,
        context: grpc.aio.ServicerContext[models_pb.ListRegisteredRequest, models_pb.ListRegisteredResponse],
    ) -> models_pb.ListRegisteredResponse:
        self._check_leading()
        return encode(self._repository.registered, models_pb.ListRegisteredResponse)
