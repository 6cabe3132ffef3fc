"""Serve pentimento.api.worker.v1 with the worker."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar

import grpc.aio

from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceServicer
from pentimento.domain.execution import ControlNetEndpoint, ExecuteEvent, LatentParallelPeer
from pentimento.domain.generation import Attempt, CacheGrant, GenerationSpec, Route
from pentimento.wire.codec import decode, encode, nested, number_of
from pentimento.wire.tensors import tensor_to_proto
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder
from services.unet_worker.worker import UnetWorker

FULL_NAME = pb.DESCRIPTOR.services_by_name["UnetWorkerService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]
Event = TypeVar("Event", pb.ExecuteResponse, pb.AttachResponse)


class UnetWorkerServicer(UnetWorkerServiceServicer):
    def __init__(self, worker: UnetWorker) -> None:
        self._worker = worker

    async def WatchCredits(
        self, request: pb.WatchCreditsRequest, context: Context
    ) -> AsyncIterator[pb.WatchCreditsResponse]:
        frontdoor = (request.frontdoor_id, request.frontdoor_epoch, request.journal_id)
        async with aclosing(self._worker.watch_credits(*frontdoor)) as feed:
            async for credits in feed:
                yield encode(credits, pb.WatchCreditsResponse)

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> AsyncIterator[pb.ExecuteResponse]:
        async with aclosing(self._worker.execute(_order(request))) as events:
            async for event in events:
                yield _to_message(event, pb.ExecuteResponse)

    async def Attach(self, request: pb.AttachRequest, context: Context) -> AsyncIterator[pb.AttachResponse]:
        events = self._worker.attempts.attach(
            request.request_id, request.fencing_token, request.frontdoor_id, request.frontdoor_epoch, request.journal_id
        )
        async with aclosing(events):
            async for event in events:
                yield _to_message(event, pb.AttachResponse)

    async def CancelAttempt(self, request: pb.CancelAttemptRequest, context: Context) -> pb.CancelAttemptResponse:
        return pb.CancelAttemptResponse(found=self._worker.attempts.cancel(request.request_id, request.fencing_token))

    async def ThinAttempt(self, request: pb.ThinAttemptRequest, context: Context) -> pb.ThinAttemptResponse:
        steps = tuple(request.thinned_steps)
        found = self._worker.attempts.thin(request.request_id, request.fencing_token, steps)
        return pb.ThinAttemptResponse(found=found)

    async def Prefetch(self, request: pb.PrefetchRequest, context: Context) -> pb.PrefetchResponse:
        return pb.PrefetchResponse(resident_components=await self._worker.prefetch(request.components))

    async def PredictHalf(
        self, request: AsyncIterator[pb.PredictHalfRequest], context: Context
    ) -> AsyncIterator[pb.PredictHalfResponse]:
        answering = self._worker.halves().answers(request, self._worker.free_half_count)
        async with aclosing(answering) as answers:
            async for answer in answers:
                yield answer

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        credits, attempts = self._worker.credits(), self._worker.attempts
        device, memory = self._worker.loaded.device, self._worker.loaded.memory()
        return pb.GetStatusResponse(
            worker_id=credits.worker_id,
            held=nested(credits.held, pb.HeldModel),
            device=device,
            device_memory_used_bytes=memory.used_bytes,
            device_memory_total_bytes=memory.total_bytes,
            attempts=[nested(attempt, pb.RunningAttempt) for attempt in credits.attempts],
            completed_count=attempts.completed_count,
            failed_count=attempts.failed_count,
            draining=credits.draining,
            capabilities=sorted(number_of(value, pb.Capability) for value in credits.capabilities),
        )


def _order(request: pb.ExecuteRequest) -> ExecuteOrder:
    has_peer = request.HasField("latent_parallel_peer")
    return ExecuteOrder(
        attempt=decode(request.attempt, Attempt, "attempt"),
        spec=decode(request.spec, GenerationSpec, "spec"),
        route=decode(request.route, Route, "route"),
        worker_generation=request.worker_generation,
        deadline_remaining_ms=request.deadline_remaining_ms,
        preview_interval_steps=request.preview_interval_steps,
        cache_grant=decode(request.cache_grant, CacheGrant, "cache_grant") if request.HasField("cache_grant") else None,
        image_format=request.image_format or "png",
        encoding_quality=request.encoding_quality if request.HasField("encoding_quality") else None,
        return_latents=request.return_latents,
        journal_id=request.journal_id,
        cache_thinned_picture=request.cache_thinned_picture,
        omit_progress=request.omit_progress,
        progress_interval_ms=request.progress_interval_ms,
        peer=decode(request.latent_parallel_peer, LatentParallelPeer) if has_peer else None,
        controlnet_endpoints=tuple(decode(one, ControlNetEndpoint) for one in request.controlnet_endpoints),
    )


def _to_message(event: ExecuteEvent | AttemptOutcome, kind: type[Event]) -> Event:
    if not isinstance(event, AttemptOutcome):
        return encode(event, kind)
    message = encode(event.result, kind)
    if event.final_latents is not None:
        message.result.final_latents.CopyFrom(tensor_to_proto(event.final_latents))
    return message
