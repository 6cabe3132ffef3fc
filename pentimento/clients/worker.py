"""Client of the UNet worker."""

from collections.abc import AsyncGenerator, Sequence

import grpc.aio

from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.clients.errors import domain_errors
from pentimento.domain.execution import ControlNetEndpoint, ExecuteEvent, WorkerCredits
from pentimento.domain.generation import Attempt, CacheGrant, GenerationSpec, Route
from pentimento.wire.codec import converter, decode, nested

_EVENTS = converter(ExecuteEvent, pb.ExecuteResponse)
_ATTACHED_EVENTS = converter(ExecuteEvent, pb.AttachResponse)


class WorkerClient:
    """Calls a worker. Streams have no deadline of their own: `cancel`, or the deadline that travels in the request,
    stops the work.

    Closing a stream ends its call at once, but only the listening: an attempt runs on as an orphan for a while.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = UnetWorkerServiceStub(channel)

    async def watch_credits(
        self, frontdoor_id: str, frontdoor_epoch: int, journal_id: str = ""
    ) -> AsyncGenerator[WorkerCredits, None]:
        """Yield what the worker holds and takes, on each change and every second."""
        request = pb.WatchCreditsRequest(
            frontdoor_id=frontdoor_id, frontdoor_epoch=frontdoor_epoch, journal_id=journal_id
        )
        call = self._stub.WatchCredits(request)
        try:
            with domain_errors():
                async for message in call:
                    yield decode(message, WorkerCredits)
        finally:
            call.cancel()

    async def execute(
        self,
        attempt: Attempt,
        spec: GenerationSpec,
        route: Route,
        worker_generation: int,
        *,
        deadline_remaining_ms: int = 0,
        preview_interval_steps: int = 0,
        cache_grant: CacheGrant | None = None,
        image_format: str = "png",
        encoding_quality: int | None = None,
        peer: tuple[str, str] | None = None,
        controlnet_endpoints: Sequence[ControlNetEndpoint] = (),
        journal_id: str = "",
        cache_thinned_picture: bool = False,
        omit_progress: bool = False,
        progress_interval_ms: int = 0,
    ) -> AsyncGenerator[ExecuteEvent, None]:
        """Run an attempt and yield started, progress, result; `deadline_remaining_ms` 0 means none. `peer`: (worker id,
        address) that computes the other half of the guidance. `controlnet_endpoints`: where the spec's ControlNets are
        served, to be tried in this order. `cache_thinned_picture`: the picture is stored for the cache even if steps
        of it are left out. `omit_progress`: progress without a preview comes at most once a second,
        otherwise at most once in `progress_interval_ms`."""
        request = pb.ExecuteRequest(
            attempt=nested(attempt, generation_pb2.Attempt),
            spec=nested(spec, generation_pb2.GenerationSpec),
            route=nested(route, generation_pb2.Route),
            worker_generation=worker_generation,
            deadline_remaining_ms=deadline_remaining_ms,
            preview_interval_steps=preview_interval_steps,
            cache_grant=nested(cache_grant, generation_pb2.CacheGrant) if cache_grant else None,
            image_format=image_format,
            encoding_quality=encoding_quality,
            latent_parallel_peer=pb.LatentParallelPeer(worker_id=peer[0], address=peer[1]) if peer else None,
            controlnet_endpoints=[nested(endpoint, pb.ControlNetEndpoint) for endpoint in controlnet_endpoints],
            journal_id=journal_id,
            cache_thinned_picture=cache_thinned_picture,
            omit_progress=omit_progress,
            progress_interval_ms=progress_interval_ms,
        )
        call = self._stub.Execute(request)
        try:
            with domain_errors():
                async for message in call:
                    yield _EVENTS.decode(message)
        finally:
            call.cancel()

    async def attach(
        self, request_id: str, fencing_token: int, frontdoor_id: str, frontdoor_epoch: int, journal_id: str = ""
    ) -> AsyncGenerator[ExecuteEvent, None]:
        """Listen again to a running or just finished attempt; NotFound when the worker has it no more."""
        request = pb.AttachRequest(
            request_id=request_id,
            fencing_token=fencing_token,
            frontdoor_id=frontdoor_id,
            frontdoor_epoch=frontdoor_epoch,
            journal_id=journal_id,
        )
        call = self._stub.Attach(request)
        try:
            with domain_errors():
                async for message in call:
                    yield _ATTACHED_EVENTS.decode(message)
        finally:
            call.cancel()

    async def cancel(self, request_id: str, fencing_token: int, timeout_s: float | None = None) -> bool:
        """Cancel the attempt; True when it was queued or running there."""
        request = pb.CancelAttemptRequest(request_id=request_id, fencing_token=fencing_token)
        with domain_errors():
            return (await self._stub.CancelAttempt(request, timeout=timeout_s)).found

    async def thin(
        self, request_id: str, fencing_token: int, thinned_steps: Sequence[int], timeout_s: float | None = None
    ) -> bool:
        """Ask the attempt to take these steps alone, from the first of them on; True when it was queued or running
        there. Its result says which it took. Raises InvalidArgument for steps that are none of its schedule."""
        request = pb.ThinAttemptRequest(request_id=request_id, fencing_token=fencing_token, thinned_steps=thinned_steps)
        with domain_errors():
            return (await self._stub.ThinAttempt(request, timeout=timeout_s)).found

    async def prefetch(self, names: Sequence[str], timeout_s: float | None = None) -> tuple[str, ...]:
        """Have LoRAs loaded ahead of need; return what the worker holds then."""
        with domain_errors():
            answer = await self._stub.Prefetch(pb.PrefetchRequest(components=names), timeout=timeout_s)
        return tuple(answer.resident_components)

    async def status(self, timeout_s: float | None = None) -> pb.GetStatusResponse:
        """Return the worker's status message."""
        with domain_errors():
            return await self._stub.GetStatus(pb.GetStatusRequest(), timeout=timeout_s)
