"""Serve pentimento.api.vectordb.v1."""

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc.aio

from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as pb
from pentimento.api.vectordb.v1.vectordb_gateway_service_pb2_grpc import VectordbGatewayServiceServicer
from pentimento.domain.cache import CacheScope, LookupCandidate
from pentimento.domain.embedding import Embedding, PromptEmbedding
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Attempt, CapturedEntries, ObjectReference
from pentimento.domain.online_quality import ComparedHit
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.wire.codec import decode, encode, nested
from services.vectordb_gateway.entries.capacity import Capacity
from services.vectordb_gateway.entries.rules import QualityWatch
from services.vectordb_gateway.entries.writer import EntryWriting, Pinning, ReservedRun
from services.vectordb_gateway.lookup.lookup import Lookup
from services.vectordb_gateway.match_predictor.match_watch import Standing
from services.vectordb_gateway.upkeep.healing import Healing
from services.vectordb_gateway.upkeep.uses import UseNotes

FULL_NAME = pb.DESCRIPTOR.services_by_name["VectordbGatewayService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class Gateway:
    """The parts of a gateway that answer calls."""

    lookup: Lookup
    writing: EntryWriting
    healing: Healing
    pinning: Pinning
    quality: QualityWatch
    uses: UseNotes
    ledger: CacheLedger
    capacity: Capacity
    index_backend: str
    object_backend: str


class GatewayServicer(VectordbGatewayServiceServicer):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def Lookup(self, request: pb.LookupRequest, context: Context) -> pb.LookupResponse:
        candidates = [decode(candidate, LookupCandidate) for candidate in request.candidates]
        prompt = _prompt(request)
        quality = request.quality if request.HasField("quality") else None
        noise_s = request.noise_s if request.HasField("noise_s") else None
        answer = await self._gateway.lookup.lookup(candidates, prompt, quality, request.repeat_key, noise_s)
        return encode(answer, pb.LookupResponse)

    async def ListNeighbours(self, request: pb.ListNeighboursRequest, context: Context) -> pb.ListNeighboursResponse:
        candidate = decode(request.candidate, LookupCandidate, "candidate")
        found = await self._gateway.lookup.neighbours(candidate, _prompt(request), request.limit_count)
        return pb.ListNeighboursResponse(neighbours=[nested(each, generation_pb2.Neighbour) for each in found])

    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.ReserveResponse:
        scope, attempt = decode(request.scope, CacheScope, "scope"), decode(request.attempt, Attempt, "attempt")
        reservation = await self._gateway.writing.reserve(scope, attempt, decode(request, ReservedRun))
        grant = encode(reservation.grant, generation_pb2.CacheGrant) if reservation.grant else None
        return pb.ReserveResponse(grant=grant, reason=reservation.reason)

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitResponse:
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

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:
        await self._gateway.writing.release(request.grant_id)
        return pb.ReleaseResponse()

    async def ReportBadObject(self, request: pb.ReportBadObjectRequest, context: Context) -> pb.ReportBadObjectResponse:
        await self._gateway.healing.report(request.entry_id, request.key, request.detail)
        return pb.ReportBadObjectResponse()

    async def ReportStart(self, request: pb.ReportStartRequest, context: Context) -> pb.ReportStartResponse:
        self._gateway.uses.note(request.key, from_image=request.from_image, taken=request.taken)
        return pb.ReportStartResponse()

    async def PinObject(self, request: pb.PinObjectRequest, context: Context) -> pb.PinObjectResponse:
        duration_s, reference = request.duration_ms / 1000, decode(request.object, ObjectReference, "object")
        expires_at = await self._gateway.pinning.pin(request.tenant, request.request_id, reference, duration_s)
        return pb.PinObjectResponse(expires_at_ms=round(expires_at * 1000))

    async def UnpinObjects(self, request: pb.UnpinObjectsRequest, context: Context) -> pb.UnpinObjectsResponse:
        await self._gateway.pinning.unpin(request.tenant, request.request_id)
        return pb.UnpinObjectsResponse()

    async def ForgetTenant(self, request: pb.ForgetTenantRequest, context: Context) -> pb.ForgetTenantResponse:
        return encode(await self._gateway.pinning.forget_tenant(request.tenant), pb.ForgetTenantResponse)

    async def ReportQuality(self, request: pb.ReportQualityRequest, context: Context) -> pb.ReportQualityResponse:
        counted = await self._gateway.quality.report(decode(request, ComparedHit))
        return pb.ReportQualityResponse(counted=counted)

    async def GetReuseQuality(self, request: pb.GetReuseQualityRequest, context: Context) -> pb.GetReuseQualityResponse:
        found = await self._gateway.quality.qualities(request.model_digest)
        return pb.GetReuseQualityResponse(thresholds=[nested(each, generation_pb2.ReuseQuality) for each in found])

    async def GetStatistics(self, request: pb.GetStatisticsRequest, context: Context) -> pb.GetStatisticsResponse:
        gateway = self._gateway
        totals = await asyncio.to_thread(gateway.ledger.totals)
        return pb.GetStatisticsResponse(
            entry_count=totals.entry_count,
            object_count=totals.object_count,
            size_bytes=totals.size_bytes,
            pending_grant_count=totals.open_grant_count,
            lookup_count=gateway.lookup.lookup_count,
            hit_count=gateway.lookup.hit_count,
            read_only=bool(gateway.capacity.read_only_reason(totals)),
            index_backend=gateway.index_backend,
            object_backend=gateway.object_backend,
            taken_count=gateway.uses.taken_count,
            passed_over_count=gateway.uses.passed_over_count,
            match_predictor=_standing(gateway.lookup.standing),
            hole_count=gateway.lookup.hole_count,
            hole_step_count=gateway.lookup.hole_step_count,
            earned=encode(gateway.quality.earned_cells(), pb.EarnedCells),
        )


def _standing(now: Standing) -> pb.MatchPredictor:
    return pb.MatchPredictor(
        on=now.on,
        reason=now.why,
        search_s=now.prices.search_s,
        image_s=now.prices.generation_s,
        prediction_s=now.prices.prediction_s,
        net_s=now.total.net_s,
        skipped_count=round(now.total.skipped_count),
    )


def _prompt(request: pb.LookupRequest | pb.ListNeighboursRequest) -> PromptEmbedding:
    image = decode(request.image_query, Embedding, "image_query") if request.HasField("image_query") else None
    return PromptEmbedding(decode(request.text_embedding, Embedding, "text_embedding"), image)


def _captured(request: pb.CommitRequest) -> CapturedEntries:
    captured = decode(request.entries, CapturedEntries, "entries")
    if captured.grant_id not in ("", request.grant_id):
        raise InvalidArgument.of("entries.grant_id", "must be the grant_id of the call, or empty")
    return CapturedEntries(request.grant_id, captured.latents, captured.image)
