"""pentimento.api.vectordb.v1 over the gateway."""

import grpc.aio

from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as pb
from pentimento.api.vectordb.v1.vectordb_gateway_service_pb2_grpc import VectordbGatewayServiceServicer
from pentimento.domain.cache import CacheScope, LookupCandidate
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Attempt, CapturedEntries, ObjectReference
from pentimento.domain.online_quality import PaintedAgain
from pentimento.wire.codec import decode, encode, nested
from services.vectordb_gateway.gateway import Gateway
from services.vectordb_gateway.writing import ReservedRun

FULL_NAME = pb.DESCRIPTOR.services_by_name["VectordbGatewayService"].full_name


class GatewayServicer(VectordbGatewayServiceServicer):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Lookup(
        self, request: pb.LookupRequest, context: grpc.aio.ServicerContext[pb.LookupRequest, pb.LookupResponse]
    ) -> pb.LookupResponse:
        candidates = [decode(candidate, LookupCandidate) for candidate in request.candidates]
        embedding = decode(request.text_embedding, Embedding, "text_embedding")
        quality = request.quality if request.HasField("quality") else None
        return encode(
            await self._gateway.lookup.lookup(candidates, embedding, quality, request.repeat_key), pb.LookupResponse
        )

    async def ListNeighbours(
        self,
        request: pb.ListNeighboursRequest,
        context: grpc.aio.ServicerContext[pb.ListNeighboursRequest, pb.ListNeighboursResponse],
    ) -> pb.ListNeighboursResponse:
        embedding = decode(request.text_embedding, Embedding, "text_embedding")
        asked = (decode(request.candidate, LookupCandidate, "candidate"), embedding, request.limit_count)
        found = await self._gateway.neighbours.nearest(*asked)
        return pb.ListNeighboursResponse(
            neighbours=[nested(neighbour, generation_pb2.Neighbour) for neighbour in found]
        )

    async def Reserve(
        self, request: pb.ReserveRequest, context: grpc.aio.ServicerContext[pb.ReserveRequest, pb.ReserveResponse]
    ) -> pb.ReserveResponse:
        scope, attempt = decode(request.scope, CacheScope, "scope"), decode(request.attempt, Attempt, "attempt")
        run = decode(request, ReservedRun)
        reservation = await self._gateway.writing.reserve(scope, attempt, run)
        grant = encode(reservation.grant, generation_pb2.CacheGrant) if reservation.grant else None
        return pb.ReserveResponse(grant=grant, reason=reservation.reason)

    async def Commit(
        self, request: pb.CommitRequest, context: grpc.aio.ServicerContext[pb.CommitRequest, pb.CommitResponse]
    ) -> pb.CommitResponse:
        has_image = request.HasField("image_embedding")
        entry_id = await self._gateway.writing.commit(
            decode(request.scope, CacheScope, "scope"),
            decode(request.attempt, Attempt, "attempt"),
            _captured(request),
            decode(request.text_embedding, Embedding, "text_embedding"),
            decode(request.image_embedding, Embedding, "image_embedding") if has_image else None,
            request.ancestor_depth,
            request.repeat_key,
        )
        return pb.CommitResponse(entry_id=entry_id)

    async def Release(
        self, request: pb.ReleaseRequest, context: grpc.aio.ServicerContext[pb.ReleaseRequest, pb.ReleaseResponse]
    ) -> pb.ReleaseResponse:
        await self._gateway.writing.release(request.grant_id)
        return pb.ReleaseResponse()

    async def ReportBadObject(
        self,
        request: pb.ReportBadObjectRequest,
        context: grpc.aio.ServicerContext[pb.ReportBadObjectRequest, pb.ReportBadObjectResponse],
    ) -> pb.ReportBadObjectResponse:
        await self._gateway.healing.report(request.entry_id, request.key, request.detail)
        return pb.ReportBadObjectResponse()

    async def ReportStart(
        self,
        request: pb.ReportStartRequest,
        context: grpc.aio.ServicerContext[pb.ReportStartRequest, pb.ReportStartResponse],
    ) -> pb.ReportStartResponse:
        self._gateway.uses.note(request.key, from_image=request.from_image, taken=request.taken)
        return pb.ReportStartResponse()

    async def PinObject(
        self,
        request: pb.PinObjectRequest,
        context: grpc.aio.ServicerContext[pb.PinObjectRequest, pb.PinObjectResponse],
    ) -> pb.PinObjectResponse:
        duration_s, reference = request.duration_ms / 1000, decode(request.object, ObjectReference, "object")
        expires_at = await self._gateway.pinning.pin(request.tenant, request.request_id, reference, duration_s)
        return pb.PinObjectResponse(expires_at_ms=round(expires_at * 1000))

    async def UnpinObjects(
        self,
        request: pb.UnpinObjectsRequest,
        context: grpc.aio.ServicerContext[pb.UnpinObjectsRequest, pb.UnpinObjectsResponse],
    ) -> pb.UnpinObjectsResponse:
        await self._gateway.pinning.unpin(request.tenant, request.request_id)
        return pb.UnpinObjectsResponse()

    async def ForgetTenant(
        self,
        request: pb.ForgetTenantRequest,
        context: grpc.aio.ServicerContext[pb.ForgetTenantRequest, pb.ForgetTenantResponse],
    ) -> pb.ForgetTenantResponse:
        await self._gateway.pinning.forget_tenant(request.tenant)
        return pb.ForgetTenantResponse()

    async def ReportQuality(
        self,
        request: pb.ReportQualityRequest,
        context: grpc.aio.ServicerContext[pb.ReportQualityRequest, pb.ReportQualityResponse],
    ) -> pb.ReportQualityResponse:
        counted = await self._gateway.quality.report(decode(request, PaintedAgain))
        return pb.ReportQualityResponse(counted=counted)

    async def GetReuseQuality(
        self,
        request: pb.GetReuseQualityRequest,
        context: grpc.aio.ServicerContext[pb.GetReuseQualityRequest, pb.GetReuseQualityResponse],
    ) -> pb.GetReuseQualityResponse:
        found = await self._gateway.quality.qualities(request.model_digest)
        return pb.GetReuseQualityResponse(
            thresholds=[nested(quality, generation_pb2.ReuseQuality) for quality in found]
        )

    async def GetStatistics(
        self,
        request: pb.GetStatisticsRequest,
        context: grpc.aio.ServicerContext[pb.GetStatisticsRequest, pb.GetStatisticsResponse],
    ) -> pb.GetStatisticsResponse:
        return encode(await self._gateway.statistics(), pb.GetStatisticsResponse)


def _captured(request: pb.CommitRequest) -> CapturedEntries:
    captured = decode(request.entries, CapturedEntries, "entries")
    if captured.grant_id not in ("", request.grant_id):
        raise InvalidArgument.of("entries.grant_id", "must be the grant_id of the call, or empty")
    return CapturedEntries(request.grant_id, captured.latents, captured.image)
