"""Call the vectordb gateway."""

from collections.abc import Sequence

import grpc.aio

from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder_pb
from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.tensor.v1 import tensor_pb2 as tensor_pb
from pentimento.api.vectordb.v1 import vectordb_gateway_service_pb2 as pb
from pentimento.api.vectordb.v1.vectordb_gateway_service_pb2_grpc import VectordbGatewayServiceStub
from pentimento.clients.calls import answer_of
from pentimento.domain.cache import CacheScope, ErasedCache, LookupAnswer, LookupCandidate, Neighbour
from pentimento.domain.embedding import Embedding
from pentimento.domain.generation import Attempt, CacheGrant, CapturedEntries, ObjectReference
from pentimento.domain.online_quality import ComparedHit, ReuseQuality
from pentimento.wire.codec import decode, encode, nested


class GatewayClient:
    """Call the gateway: look up entries; write them by reserve, then commit or release."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = VectordbGatewayServiceStub(channel)

    async def lookup(
        self,
        candidates: Sequence[LookupCandidate],
        embedding: Embedding,
        quality: float | None = None,
        timeout_s: float | None = None,
        repeat_key: str = "",
        noise_s: float | None = None,
        image_query: Embedding | None = None,
    ) -> LookupAnswer:
        """Return the start of each candidate and its reason, in order. `quality`: requested share of the from-scratch
        quality, 0..1, None for the deployment's default. `repeat_key`: digest of the request's prompt and seed.
        `noise_s`: device seconds of its image from noise, None for unknown. `image_query`: the prompt by the encoder of
        images, None where `embedding` is of one encoder for both or that encoder did not answer."""
        request = pb.LookupRequest(
            candidates=[nested(candidate, pb.LookupCandidate) for candidate in candidates],
            text_embedding=nested(embedding, embedder_pb.Embedding),
            quality=quality,
            repeat_key=repeat_key,
            noise_s=noise_s,
            image_query=_message_of(image_query),
        )
        return decode(await answer_of(self._stub.Lookup, request, timeout_s), LookupAnswer)

    async def neighbours(
        self,
        candidate: LookupCandidate,
        embedding: Embedding,
        limit_count: int,
        timeout_s: float | None = None,
        image_query: Embedding | None = None,
    ) -> tuple[Neighbour, ...]:
        """Return the nearest entries of a lookup for the candidate, also below the threshold."""
        request = pb.ListNeighboursRequest(
            candidate=nested(candidate, pb.LookupCandidate),
            text_embedding=nested(embedding, embedder_pb.Embedding),
            limit_count=limit_count,
            image_query=_message_of(image_query),
        )
        answer = await answer_of(self._stub.ListNeighbours, request, timeout_s)
        return tuple(decode(neighbour, Neighbour) for neighbour in answer.neighbours)

    async def reserve(
        self,
        scope: CacheScope,
        attempt: Attempt,
        start_step: int = 0,
        ancestor_depth: int = 0,
        timeout_s: float | None = None,
        *,
        keeps_image: bool = True,
        start_kind: str = "",
        light: bool = False,
        tenant_cache_bytes: int | None = None,
    ) -> CacheGrant | None:
        """Request a grant to store an attempt's latents and image; None if the cache needs neither.

        The attempt starts at `start_step` and has `ancestor_depth` ancestors. The gateway chooses which objects are
        stored, the image only with `keeps_image`. `start_kind`: noise, latent or image. `light`: for a stage of a
        cascade that another one may follow. `tenant_cache_bytes`: limit of the tenant's bytes in the cache.
        """
        request = pb.ReserveRequest(
            scope=nested(scope, pb.CacheScope),
            attempt=nested(attempt, generation_pb2.Attempt),
            start_step=start_step,
            ancestor_depth=ancestor_depth,
            keeps_image=keeps_image,
            start_kind=start_kind,
            light=light,
            tenant_cache_bytes=tenant_cache_bytes,
        )
        answer = await answer_of(self._stub.Reserve, request, timeout_s)
        return decode(answer.grant, CacheGrant) if answer.HasField("grant") else None

    async def commit(
        self,
        scope: CacheScope,
        attempt: Attempt,
        captured: CapturedEntries,
        text_embedding: Embedding,
        image_embedding: Embedding | None = None,
        ancestor_depth: int = 0,
        timeout_s: float | None = None,
        repeat_key: str = "",
    ) -> str:
        """Make the stored objects findable and return the entry's id; a repeated call returns the same."""
        request = pb.CommitRequest(
            grant_id=captured.grant_id,
            attempt=nested(attempt, generation_pb2.Attempt),
            scope=nested(scope, pb.CacheScope),
            entries=nested(captured, generation_pb2.CapturedEntries),
            text_embedding=nested(text_embedding, embedder_pb.Embedding),
            image_embedding=_message_of(image_embedding),
            ancestor_depth=ancestor_depth,
            repeat_key=repeat_key,
        )
        return (await answer_of(self._stub.Commit, request, timeout_s)).entry_id

    async def release(self, grant_id: str, timeout_s: float | None = None) -> None:
        """Return a grant unused: nothing enters the cache."""
        await answer_of(self._stub.Release, pb.ReleaseRequest(grant_id=grant_id), timeout_s)

    async def report_bad_object(self, entry_id: str, key: str, detail: str, timeout_s: float | None = None) -> None:
        """Report an object of an entry that is missing or corrupt."""
        request = pb.ReportBadObjectRequest(entry_id=entry_id, key=key, detail=detail)
        await answer_of(self._stub.ReportBadObject, request, timeout_s)

    async def report_start(self, key: str, *, from_image: bool, taken: bool, timeout_s: float | None = None) -> None:
        """Report the outcome of a start from the latent or image of a key, which a lookup returned."""
        request = pb.ReportStartRequest(key=key, from_image=from_image, taken=taken)
        await answer_of(self._stub.ReportStart, request, timeout_s)

    async def pin_object(
        self,
        tenant: str,
        request_id: str,
        reference: ObjectReference,
        duration_s: float,
        timeout_s: float | None = None,
    ) -> None:
        """Keep the start of a request's image for a time. NotFound ANCESTOR_GONE if it is no longer stored."""
        request = pb.PinObjectRequest(
            tenant=tenant,
            request_id=request_id,
            object=nested(reference, tensor_pb.ObjectReference),
            duration_ms=max(round(duration_s * 1000), 1),
        )
        await answer_of(self._stub.PinObject, request, timeout_s)

    async def unpin_objects(self, tenant: str, request_id: str, timeout_s: float | None = None) -> None:
        """End the pins of a request."""
        request = pb.UnpinObjectsRequest(tenant=tenant, request_id=request_id)
        await answer_of(self._stub.UnpinObjects, request, timeout_s)

    async def forget_tenant(self, tenant: str, timeout_s: float | None = None) -> ErasedCache:
        """Delete a tenant's entries; return the totals of all calls for it, and of the rest."""
        answer = await answer_of(self._stub.ForgetTenant, pb.ForgetTenantRequest(tenant=tenant), timeout_s)
        return decode(answer, ErasedCache)

    async def report_quality(self, seen: ComparedHit, timeout_s: float | None = None) -> bool:
        """Report a hit that was also generated from scratch. Return whether it counts: only the first report does."""
        return (await answer_of(self._stub.ReportQuality, encode(seen, pb.ReportQualityRequest), timeout_s)).counted

    async def reuse_quality(self, model_digest: str, timeout_s: float | None = None) -> tuple[ReuseQuality, ...]:
        """Return a model's thresholds, and the measured quality of their hits."""
        request = pb.GetReuseQualityRequest(model_digest=model_digest)
        answer = await answer_of(self._stub.GetReuseQuality, request, timeout_s)
        return tuple(decode(quality, ReuseQuality) for quality in answer.thresholds)

    async def statistics(self, timeout_s: float | None = None) -> pb.GetStatisticsResponse:
        """Return the cache's statistics message."""
        return await answer_of(self._stub.GetStatistics, pb.GetStatisticsRequest(), timeout_s)


def _message_of(embedding: Embedding | None) -> embedder_pb.Embedding | None:
    return nested(embedding, embedder_pb.Embedding) if embedding is not None else None
