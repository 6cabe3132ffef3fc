"""pentimento.api.worker.v1 over the worker."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc.aio

from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceServicer
from pentimento.domain.execution import ControlNetEndpoint, LatentParallelPeer
from pentimento.wire.enumerations import CAPABILITIES
from pentimento.wire.fleet import (
    attach_event_to_proto,
    credits_to_proto,
    execute_event_to_proto,
    held_model_to_proto,
    running_attempt_to_proto,
)
from pentimento.wire.generation import (
    attempt_from_proto,
    grant_from_proto,
    route_from_proto,
    spec_from_proto,
)
from pentimento.wire.tensors import tensor_to_proto
from services.unet_worker.attempts.order import AttemptOutcome, ExecuteOrder
from services.unet_worker.worker import UnetWorker

FULL_NAME = pb.DESCRIPTOR.services_by_name["UnetWorkerService"].full_name
Context = grpc.aio.ServicerContext[Any, Any]


class UnetWorkerServicer(UnetWorkerServiceServicer):
    def __init__(self, worker: UnetWorker) -> None:
        self._worker = worker

    async def WatchCredits(
        self, request: pb.WatchCreditsRequest, context: Context
    ) -> AsyncIterator[pb.WatchCreditsResponse]:
        frontdoor = (request.frontdoor_id, request.frontdoor_epoch, request.journal_id)
        async with aclosing(self._worker.watch_credits(*frontdoor)) as feed:
            async for credits in feed:
                yield credits_to_proto(credits)

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> AsyncIterator[pb.ExecuteResponse]:
        async with aclosing(self._worker.execute(_order(request))) as events:
            async for event in events:
                yield _outcome_to_proto(event) if isinstance(event, AttemptOutcome) else execute_event_to_proto(event)

    async def Attach(self, request: pb.AttachRequest, context: Context) -> AsyncIterator[pb.AttachResponse]:
        events = self._worker.attempts.attach(
            request.request_id,
            request.fencing_token,
            request.frontdoor_id,
            request.frontdoor_epoch,
            request.journal_id,
        )
        async with aclosing(events):
            async for event in events:
                if isinstance(event, AttemptOutcome):
                    yield pb.AttachResponse(result=_outcome_to_proto(event).result)
                else:
                    yield attach_event_to_proto(event)

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
        status = self._worker.status()
        credits = status.credits
        return pb.GetStatusResponse(
            worker_id=credits.worker_id,
            held=held_model_to_proto(credits.held),
            device=status.device,
            device_memory_used_bytes=status.memory.used_bytes,
            device_memory_total_bytes=status.memory.total_bytes,
            attempts=[running_attempt_to_proto(attempt) for attempt in credits.attempts],
            completed_count=status.completed_count,
            failed_count=status.failed_count,
            draining=credits.draining,
            capabilities=sorted(CAPABILITIES.to_proto(value) for value in credits.capabilities),
        )


def _order(request: pb.ExecuteRequest) -> ExecuteOrder:
    return ExecuteOrder(
        attempt=attempt_from_proto(request.attempt),
        spec=spec_from_proto(request.spec),
        route=route_from_proto(request.route),
        worker_generation=request.worker_generation,
        deadline_remaining_ms=request.deadline_remaining_ms,
        preview_interval_steps=request.preview_interval_steps,
        cache_grant=grant_from_proto(request.cache_grant) if request.HasField("cache_grant") else None,
        image_format=request.image_format or "png",
        encoding_quality=request.encoding_quality if request.HasField("encoding_quality") else None,
        return_latents=request.return_latents,
        journal_id=request.journal_id,
        cache_thinned_picture=request.cache_thinned_picture,
        omit_progress=request.omit_progress,
        progress_interval_ms=request.progress_interval_ms,
        peer=_peer(request),
        controlnet_endpoints=tuple(
            ControlNetEndpoint(endpoint.name, endpoint.address, endpoint.controlnet_digest)
            for endpoint in request.controlnet_endpoints
        ),
    )


def _peer(request: pb.ExecuteRequest) -> LatentParallelPeer | None:
    message = request.latent_parallel_peer
    return LatentParallelPeer(message.worker_id, message.address) if request.HasField("latent_parallel_peer") else None


def _outcome_to_proto(outcome: AttemptOutcome) -> pb.ExecuteResponse:
    message = execute_event_to_proto(outcome.result)
    if outcome.final_latents is not None:
        message.result.final_latents.CopyFrom(tensor_to_proto(outcome.final_latents))
    return message
