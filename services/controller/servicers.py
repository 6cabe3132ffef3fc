"""Serve the controller's services over protobuf: replicas and plans, models, uploaded LoRAs, KEDA's scaler."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc.aio

from pentimento.api.adapters.v1 import adapter_registry_service_pb2 as adapters_pb
from pentimento.api.adapters.v1.adapter_registry_service_pb2_grpc import AdapterRegistryServiceServicer
from pentimento.api.controller.v1 import controller_service_pb2 as pb
from pentimento.api.controller.v1.controller_service_pb2_grpc import ControllerServiceServicer
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.keda import externalscaler_pb2 as keda_pb
from pentimento.api.keda.externalscaler_pb2_grpc import ExternalScalerServicer
from pentimento.api.models.v1 import model_repository_service_pb2 as models_pb
from pentimento.api.models.v1.model_repository_service_pb2_grpc import ModelRepositoryServiceServicer
from pentimento.domain.adapters import LoraUpload
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.fleet import Replica, ReplicaReport
from pentimento.domain.generation import PlanVersion
from pentimento.domain.models import OBJECTS_SOURCE, CascadeVariant, ModelFile, ModelVariant
from pentimento.rpc import current_caller
from pentimento.wire.codec import decode, encode, nested
from services.controller.controller import Controller
from services.controller.model_checks import check_each_file, check_fits_disk, check_variant
from services.controller.repository import ModelRepository
from services.controller.scaler import METRIC, Scaler, target_of

if TYPE_CHECKING:
    # A controller without a ledger starts without its libraries.
    from services.controller.uploads import UploadedAdapters

FULL_NAME = pb.DESCRIPTOR.services_by_name["ControllerService"].full_name
MODELS_FULL_NAME = models_pb.DESCRIPTOR.services_by_name["ModelRepositoryService"].full_name
ADAPTERS_FULL_NAME = adapters_pb.DESCRIPTOR.services_by_name["AdapterRegistryService"].full_name
SCALER_FULL_NAME = keda_pb.DESCRIPTOR.services_by_name["ExternalScaler"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


class ControllerServicer(ControllerServiceServicer):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterResponse:
        return encode(self._controller.register(decode(request.replica, Replica, "replica")), pb.RegisterResponse)

    async def Report(self, request: pb.ReportRequest, context: Context) -> pb.ReportResponse:
        return pb.ReportResponse(leader_epoch=self._controller.report(decode(request, ReplicaReport)))

    async def Deregister(self, request: pb.DeregisterRequest, context: Context) -> pb.DeregisterResponse:
        self._controller.deregister(request.instance_id, request.generation)
        return pb.DeregisterResponse()

    async def WatchPlan(self, request: pb.WatchPlanRequest, context: Context) -> AsyncIterator[pb.WatchPlanResponse]:
        have = decode(request.have, PlanVersion, "have") if request.HasField("have") else None
        async with aclosing(self._controller.watch(have)) as plans:
            async for plan in plans:
                yield pb.WatchPlanResponse(plan=nested(plan, pb.Plan))

    async def FindComponents(self, request: pb.FindComponentsRequest, context: Context) -> pb.FindComponentsResponse:
        found = self._controller.find_components(request.instance_id, tuple(request.digests), request.model)
        return pb.FindComponentsResponse(components=[nested(one, pb.FoundComponent) for one in found])

    async def GetFleet(self, request: pb.GetFleetRequest, context: Context) -> pb.GetFleetResponse:
        return encode(self._controller.fleet(), pb.GetFleetResponse)


class ModelRepositoryServicer(ModelRepositoryServiceServicer):
    """Serve the model repository. `uploads` stores files of models; None without a ledger or an object store.
    `disk_bytes`: what a worker's local disk holds of a model. `check_leading` raises Unavailable on a standby."""

    def __init__(
        self,
        repository: ModelRepository,
        uploads: "UploadedAdapters | None",
        disk_bytes: int,
        check_leading: Callable[[], None],
    ) -> None:
        self._repository = repository
        self._uploads = uploads
        self._disk_bytes = disk_bytes
        self._check_leading = check_leading

    async def FindMissingFiles(
        self, request: models_pb.FindMissingFilesRequest, context: Context
    ) -> models_pb.FindMissingFilesResponse:
        uploads = served_uploads(self._uploads, self._check_leading)
        files = tuple(decode(file, ModelFile, f"files[{index}]") for index, file in enumerate(request.files))
        check_each_file(files)
        check_fits_disk(files, self._disk_bytes)
        return models_pb.FindMissingFilesResponse(sha256s=await uploads.missing(files))

    async def AddFile(
        self, requests: AsyncIterator[models_pb.AddFileRequest], context: Context
    ) -> models_pb.AddFileResponse:
        uploads = served_uploads(self._uploads, self._check_leading)
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "file":
            raise InvalidArgument.of("file", "must come first: what the file is, then its bytes")
        await uploads.add_file(decode(first.file, ModelFile, "file"), _chunks(requests))
        return models_pb.AddFileResponse()

    async def RegisterModel(
        self, request: models_pb.RegisterModelRequest, context: Context
    ) -> models_pb.RegisterModelResponse:
        self._check_leading()
        model = decode(request.model, ModelVariant, "model")
        check_variant(model)
        check_fits_disk(model.stored_files, self._disk_bytes)
        if model.source.startswith(OBJECTS_SOURCE):
            model = await served_uploads(self._uploads, self._check_leading).located(model)
        await self._repository.register_model(model)
        return models_pb.RegisterModelResponse()

    async def GetModel(self, request: models_pb.GetModelRequest, context: Context) -> models_pb.GetModelResponse:
        self._check_leading()
        return models_pb.GetModelResponse(model=nested(self._repository.model(request.name), models_pb.ModelVariant))

    async def RemoveModel(
        self, request: models_pb.RemoveModelRequest, context: Context
    ) -> models_pb.RemoveModelResponse:
        self._check_leading()
        await self._repository.remove_model(request.name)
        return models_pb.RemoveModelResponse()

    async def RegisterCascade(
        self, request: models_pb.RegisterCascadeRequest, context: Context
    ) -> models_pb.RegisterCascadeResponse:
        self._check_leading()
        cascade = await self._repository.register_cascade(
            decode(request.cascade, CascadeVariant, "cascade"), tuple(request.handover_profiles)
        )
        return models_pb.RegisterCascadeResponse(cascade=nested(cascade, models_pb.CascadeVariant))

    async def RemoveCascade(
        self, request: models_pb.RemoveCascadeRequest, context: Context
    ) -> models_pb.RemoveCascadeResponse:
        self._check_leading()
        await self._repository.remove_cascade(request.name)
        return models_pb.RemoveCascadeResponse()

    async def ListRegistered(
        self, request: models_pb.ListRegisteredRequest, context: Context
    ) -> models_pb.ListRegisteredResponse:
        self._check_leading()
        found = self._repository.registered
        listed = replace(found, models=tuple(model.without_blocks for model in found.models))
        return encode(listed, models_pb.ListRegisteredResponse)


class AdapterRegistryServicer(AdapterRegistryServiceServicer):
    """Serve uploads of LoRAs. `uploads` is None without a ledger or an object store: then all calls fail.
    `check_leading` raises Unavailable on a standby."""

    def __init__(self, uploads: "UploadedAdapters | None", check_leading: Callable[[], None]) -> None:
        self._uploads = uploads
        self._check_leading = check_leading

    async def AddLora(
        self, requests: AsyncIterator[adapters_pb.AddLoraRequest], context: Context
    ) -> adapters_pb.AddLoraResponse:
        uploads = self._served()
        first = await anext(requests, None)
        if first is None or first.WhichOneof("part") != "upload":
            raise InvalidArgument.of("upload", "must come first: what the LoRA is, then its file")
        adapter = await uploads.add(decode(first.upload, LoraUpload), _chunks(requests), current_caller().tenant)
        return adapters_pb.AddLoraResponse(adapter=nested(adapter, generation_pb2.Adapter))

    async def ListLoras(self, request: adapters_pb.ListLorasRequest, context: Context) -> adapters_pb.ListLorasResponse:
        return adapters_pb.ListLorasResponse(
            adapters=[nested(adapter, generation_pb2.Adapter) for adapter in self._served().adapters]
        )

    async def RemoveLora(
        self, request: adapters_pb.RemoveLoraRequest, context: Context
    ) -> adapters_pb.RemoveLoraResponse:
        await self._served().remove(request.name)
        return adapters_pb.RemoveLoraResponse()

    def _served(self) -> "UploadedAdapters":
        return served_uploads(self._uploads, self._check_leading)


def served_uploads(uploads: "UploadedAdapters | None", check_leading: Callable[[], None]) -> "UploadedAdapters":
    """Return the uploads. Raises Unavailable on a standby, and FailedPrecondition NO_UPLOADS without them."""
    check_leading()
    if uploads is None:
        message = "this controller has no ledger or no object store: nothing can be uploaded"
        raise FailedPrecondition("NO_UPLOADS", message)
    return uploads


async def _chunks(
    requests: AsyncIterator[adapters_pb.AddLoraRequest] | AsyncIterator[models_pb.AddFileRequest],
) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("part") != "chunk":
            raise InvalidArgument.of("chunk", "must be all that follows the first message")
        yield request.chunk


class KedaScalerServicer(ExternalScalerServicer):
    """Serve KEDA. The metric is the wanted number of replicas, its target 1: the autoscaler's quotient is the number
    itself."""

    def __init__(self, scaler: Scaler) -> None:
        self._scaler = scaler

    async def IsActive(self, request: keda_pb.ScaledObjectRef, context: Context) -> keda_pb.IsActiveResponse:
        return keda_pb.IsActiveResponse(result=self._scaler.wanted(target_of(request.scalerMetadata)) > 0)

    async def StreamIsActive(
        self, request: keda_pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[keda_pb.IsActiveResponse]:
        async with aclosing(self._scaler.watch_active(target_of(request.scalerMetadata))) as changes:
            async for active in changes:
                yield keda_pb.IsActiveResponse(result=active)

    async def GetMetricSpec(self, request: keda_pb.ScaledObjectRef, context: Context) -> keda_pb.GetMetricSpecResponse:
        target_of(request.scalerMetadata)
        return keda_pb.GetMetricSpecResponse(
            metricSpecs=[keda_pb.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)]
        )

    async def StreamMetricSpec(
        self, request: keda_pb.ScaledObjectRef, context: Context
    ) -> AsyncIterator[keda_pb.GetMetricSpecResponse]:
        """Yield the specification, which never changes. The stream stays open: KEDA would open it again."""
        yield await self.GetMetricSpec(request, context)
        await self._scaler.until_closed()

    async def GetMetrics(self, request: keda_pb.GetMetricsRequest, context: Context) -> keda_pb.GetMetricsResponse:
        if request.metricName not in ("", METRIC):
            raise InvalidArgument.of("metricName", f"must be {METRIC}, got {request.metricName[:80]!r}")
        wanted = self._scaler.wanted(target_of(request.scaledObjectRef.scalerMetadata))
        value = keda_pb.MetricValue(metricName=METRIC, metricValue=wanted, metricValueFloat=wanted)
        return keda_pb.GetMetricsResponse(metricValues=[value])
