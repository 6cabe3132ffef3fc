"""Call the UNet worker."""

from collections.abc import AsyncGenerator, Sequence

import grpc.aio

from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.worker.v1 import unet_worker_service_pb2 as pb
from pentimento.api.worker.v1.unet_worker_service_pb2_grpc import UnetWorkerServiceStub
from pentimento.clients.calls import answer_of, stream
from pentimento.domain.execution import ControlNetEndpoint, ExecuteEvent, WorkerCredits
from pentimento.domain.generation import Attempt, CacheGrant, GenerationSpec, Route
from pentimento.wire.codec import converter, decode, nested

_EVENTS = converter(ExecuteEvent, pb.ExecuteResponse)
_ATTACHED_EVENTS = converter(ExecuteEvent, pb.AttachResponse)


class WorkerClient:
    """Call a worker. Streams have no deadline: `cancel` or the request's deadline stops an attempt.

    Closing a stream ends only the call: the attempt continues as an orphan for a while.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = UnetWorkerServiceStub(channel)

    def watch_credits(
        self, frontdoor_id: str, frontdoor_epoch: int, journal_id: str = ""
    ) -> AsyncGenerator[WorkerCredits, None]:
        """Yield the worker's credits and models, on each change and every second."""
        request = pb.WatchCreditsRequest(
            frontdoor_id=frontdoor_id, frontdoor_epoch=frontdoor_epoch, journal_id=journal_id
        )
        return stream(lambda: self._stub.WatchCredits(request), lambda message: decode(message, WorkerCredits))

    def execute(
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
        """Run an attempt and yield started, progress, result.

        `deadline_remaining_ms`: 0 for none. `peer`: worker id and address that compute the other half of the guidance.
        `controlnet_endpoints`: replicas of the spec's ControlNets, tried in this order. `cache_thinned_picture`: store
        the image for the cache even if steps were skipped. `omit_progress`: progress without a preview at most once
        per second, else at most once per `progress_interval_ms`."""
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
        return stream(lambda: self._stub.Execute(request), _EVENTS.decode)

    def attach(
        self, request_id: str, fencing_token: int, frontdoor_id: str, frontdoor_epoch: int, journal_id: str = ""
    ) -> AsyncGenerator[ExecuteEvent, None]:
        """Yield the events of a running or just finished attempt; NotFound if the worker no longer has it."""
        request = pb.AttachRequest(
            request_id=request_id,
            fencing_token=fencing_token,
            frontdoor_id=frontdoor_id,
            frontdoor_epoch=frontdoor_epoch,
            journal_id=journal_id,
        )
        return stream(lambda: self._stub.Attach(request), _ATTACHED_EVENTS.decode)

    async def cancel(self, request_id: str, fencing_token: int, timeout_s: float | None = None) -> bool:
        """Cancel the attempt. Return whether it was queued or running."""
        request = pb.CancelAttemptRequest(request_id=request_id, fencing_token=fencing_token)
        return (await answer_of(self._stub.CancelAttempt, request, timeout_s)).found

    async def thin(
        self, request_id: str, fencing_token: int, thinned_steps: Sequence[int], timeout_s: float | None = None
    ) -> bool:
        """Make the attempt run only these steps, from the first one on; its result has the steps that ran. Return
        whether it was queued or running. Raises InvalidArgument for steps outside its schedule."""
        request = pb.ThinAttemptRequest(request_id=request_id, fencing_token=fencing_token, thinned_steps=thinned_steps)
        return (await answer_of(self._stub.ThinAttempt, request, timeout_s)).found

    async def prefetch(self, names: Sequence[str], timeout_s: float | None = None) -> tuple[str, ...]:
        """Load LoRAs ahead of need; return the worker's loaded ones."""
        answer = await answer_of(self._stub.Prefetch, pb.PrefetchRequest(components=names), timeout_s)
        return tuple(answer.resident_components)

    async def status(self, timeout_s: float | None = None) -> pb.GetStatusResponse:
        """Return the worker's status message."""
        return await answer_of(self._stub.GetStatus, pb.GetStatusRequest(), timeout_s)
