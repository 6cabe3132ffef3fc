"""Call the public API."""

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc.aio
from google.protobuf.message import Message

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import ImageServiceStub
from pentimento.clients.calls import answer_of, stream
from pentimento.domain.adapters import Adapter
from pentimento.domain.errors import FailedPrecondition, Internal, PentimentoError, Unavailable
from pentimento.domain.image_request import (
    Accepted,
    Completed,
    Explanation,
    GenerateEvent,
    ImageRequest,
    ModelInfo,
    PinnedImage,
    ReplayRequest,
    RequestStatus,
    TenantCells,
)
from pentimento.domain.jobs import RequestPage, RequestQuery, RequestState, ResultUrl, ResultUrlServer
from pentimento.domain.reasons import Reason
from pentimento.wire.codec import checked, converter, decode, encode, member_of

if TYPE_CHECKING:
    from pentimento.api.image.v1.image_service_pb2_grpc import ImageServiceAsyncStub

# gRPC's default limit.
DEFAULT_MESSAGE_BYTES = 4 << 20


class ImageJoiner:
    """Join the images of one stream."""

    def __init__(self) -> None:
        self._chunks: defaultdict[int, list[bytes]] = defaultdict(list)

    def event(self, message: pb.GenerateResponse | pb.ReplayResponse | pb.AttachResponse) -> GenerateEvent | None:
        """Return the event of a message; None for a chunk. Raises Internal IMAGE_INCOMPLETE when chunks are missing."""
        if message.WhichOneof("event") == "image_chunk":
            self._chunks[message.image_chunk.image_index].append(message.image_chunk.data)
            return None
        event: GenerateEvent = converter(GenerateEvent, type(message)).decode(message)
        if not isinstance(event, Completed) or not message.completed.image_size_bytes:
            return event
        image, size_bytes = b"".join(self._chunks.pop(event.image_index, ())), message.completed.image_size_bytes
        if len(image) != size_bytes:
            raise Internal("IMAGE_INCOMPLETE", f"{len(image)} of the {size_bytes} bytes of an image came")
        return replace(event, image=image)


# Opens a channel to the cell that an error WRONG_CELL names; raises the error if it cannot.
OpenCell = Callable[[PentimentoError], AbstractAsyncContextManager[grpc.aio.Channel]]
# A tenant's new cell leads to a former one, and lists that differ for a moment to one more.
MOST_CELLS = 4


class ImageClient:
    """Call pentimento.api.image.v1.ImageService; closing the stream of `generate` cancels the request."""

    def __init__(self, channel: grpc.aio.Channel, open_cell: OpenCell | None = None) -> None:
        """Call a frontdoor, and the cells that it leads to; without `open_cell` raise WRONG_CELL."""
        self._stub = ImageServiceStub(channel)
        self._open_cell = open_cell

    def generate(
        self,
        request: ImageRequest,
        idempotency_key: str = "",
        preview_interval_steps: int = 0,
        *,
        omit_progress: bool = False,
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress, completed. `omit_progress`: without routed, and only progress with a
        preview."""
        message = generate_to_proto(request, idempotency_key, preview_interval_steps)
        message.omit_progress, message.max_message_bytes = omit_progress, DEFAULT_MESSAGE_BYTES
        return self._events("Generate", message)

    def replay(
        self, request: ReplayRequest, idempotency_key: str = "", preview_interval_steps: int = 0
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress, completed of the replay of a request."""
        message = encode(request, pb.ReplayRequest)
        options = checked(
            pb.ReplayRequest,
            idempotency_key=idempotency_key,
            preview_interval_steps=preview_interval_steps,
            max_message_bytes=DEFAULT_MESSAGE_BYTES,
        )
        message.MergeFrom(options)
        return self._events("Replay", message)

    async def submit(
        self, request: ImageRequest, idempotency_key: str = "", preview_interval_steps: int = 0, webhook_url: str = ""
    ) -> Accepted:
        """Submit the request as a job and return its id. `webhook_url` is called once it has ended."""
        generate = generate_to_proto(request, idempotency_key, preview_interval_steps)
        webhook = checked(pb.Webhook, "webhook", url=webhook_url) if webhook_url else None
        answer = await self._answer("Submit", pb.SubmitRequest(generate=generate, webhook=webhook))
        return decode(answer, Accepted)

    def attach(self, request_id: str) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress, completed of an earlier request; closing the generator cancels no job."""
        message = checked(pb.AttachRequest, request_id=request_id, max_message_bytes=DEFAULT_MESSAGE_BYTES)
        return self._events("Attach", message)

    async def list_requests(self, query: RequestQuery | None = None, timeout_s: float | None = None) -> RequestPage:
        """Return a page of the tenant's requests, newest first."""
        message = encode(query or RequestQuery(), pb.ListRequestsRequest)
        return decode(await self._answer("ListRequests", message, timeout_s), RequestPage)

    async def result_url(
        self, request_id: str, expires_in_ms: int | None = None, timeout_s: float | None = None
    ) -> ResultUrl:
        """Return a URL of a completed request's image, readable without a token until it expires; a path if the HTTP
        API serves it."""
        message = checked(pb.GetResultUrlRequest, request_id=request_id, expires_in_ms=expires_in_ms)
        return decode(await self._answer("GetResultUrl", message, timeout_s), ResultUrl)

    async def webhook_key(self, timeout_s: float | None = None) -> str:
        """Return the key that signs the webhooks of the caller's tenant (Standard Webhooks, whsec_…)."""
        return str((await self._answer("GetWebhookKey", pb.GetWebhookKeyRequest(), timeout_s)).key)

    async def pin(self, request_id: str, duration_ms: int, timeout_s: float | None = None) -> PinnedImage:
        """Keep the start of a completed request's image, so that it can be replayed for a time from now.
        ResourceExhausted QUOTA_EXCEEDED above the tenant's quota, NotFound ANCESTOR_GONE if the start is no longer
        stored."""
        message = checked(pb.PinRequest, request_id=request_id, duration_ms=duration_ms)
        return decode(await self._answer("Pin", message, timeout_s), PinnedImage)

    async def unpin(self, request_id: str, timeout_s: float | None = None) -> None:
        """End the pin of a request; without one do nothing."""
        message = checked(pb.UnpinRequest, request_id=request_id)
        await self._answer("Unpin", message, timeout_s)

    async def cancel(self, request_id: str, timeout_s: float | None = None) -> RequestState:
        """Cancel a request within one denoising step, and return its state afterwards."""
        message = checked(pb.CancelRequest, request_id=request_id)
        answer = await self._answer("Cancel", message, timeout_s)
        return member_of(answer.state, RequestState, pb.RequestState, "state")

    async def get_request(
        self, request_id: str, omit_image: bool = False, timeout_s: float | None = None
    ) -> RequestStatus:
        """Return a request's state, with its image if it is completed. NotFound for an unknown request or another
        tenant's."""
        message = checked(pb.GetRequestRequest, request_id=request_id, omit_image=omit_image)
        return decode(await self._answer("GetRequest", message, timeout_s), RequestStatus)

    async def explain(
        self, request: ImageRequest, timeout_s: float | None = None, *, neighbour_count: int = 0
    ) -> Explanation:
        """Return the route that `generate` would take now, and up to 50 of the cache's nearest entries."""
        message = checked(pb.ExplainRequest, request=encode(request, pb.ImageRequest), neighbour_count=neighbour_count)
        return decode(await self._answer("Explain", message, timeout_s), Explanation)

    async def find_cell(self, timeout_s: float | None = None) -> TenantCells:
        """Return the cells of the caller's tenant."""
        return decode(await self._answer("FindCell", pb.FindCellRequest(), timeout_s), TenantCells)

    async def list_models(self, timeout_s: float | None = None) -> tuple[ModelInfo, ...]:
        """Return the served models with their limits."""
        answer = await self._answer("ListModels", pb.ListModelsRequest(), timeout_s)
        return tuple(decode(model, ModelInfo) for model in answer.models)

    async def list_adapters(self, timeout_s: float | None = None) -> tuple[Adapter, ...]:
        """Return the LoRAs and ControlNets that requests may name, with the models that they fit."""
        answer = await self._answer("ListModels", pb.ListModelsRequest(), timeout_s)
        return tuple(decode(adapter, Adapter) for adapter in answer.adapters)

    async def result_url_server(self, timeout_s: float | None = None) -> ResultUrlServer | None:
        """Return the service behind URLs of images; None while the frontdoor does not know."""
        answer = await self._answer("ListModels", pb.ListModelsRequest(), timeout_s)
        return (
            member_of(answer.result_url_server, ResultUrlServer, pb.ResultUrlServer, "result_url_server")
            if answer.result_url_server
            else None
        )

    async def _answer(self, method: str, message: Message, timeout_s: float | None = None) -> Any:
        async with AsyncExitStack() as cells:
            stub = self._stub
            for _ in range(MOST_CELLS):
                try:
                    return await answer_of(getattr(stub, method), message, timeout_s)
                except FailedPrecondition as error:
                    stub = await self._other_cell(error, cells)
        raise too_many_cells()

    async def _events(self, method: str, message: Message) -> AsyncGenerator[GenerateEvent, None]:
        """Yield the events of a call; closing the generator cancels it."""
        async with AsyncExitStack() as cells:
            stub = self._stub
            for _ in range(MOST_CELLS):
                call = partial(getattr(stub, method), message)
                try:
                    async with aclosing(stream(call, ImageJoiner().event)) as events:
                        async for event in events:
                            if event is not None:
                                yield event
                    return
                except FailedPrecondition as error:
                    stub = await self._other_cell(error, cells)
        raise too_many_cells()

    async def _other_cell(self, error: FailedPrecondition, cells: AsyncExitStack) -> "ImageServiceAsyncStub":
        if error.reason != Reason.WRONG_CELL or self._open_cell is None:
            raise error
        return ImageServiceStub(await cells.enter_async_context(self._open_cell(error)))


def too_many_cells() -> Unavailable:
    """Return the error of a call that each cell led to another one."""
    return Unavailable(Reason.WRONG_CELL, f"{MOST_CELLS} cells led to others: their lists of cells differ")


def generate_to_proto(request: ImageRequest, idempotency_key: str, preview_interval_steps: int) -> pb.GenerateRequest:
    """Return the message of a request. InvalidArgument names a value that it cannot contain."""
    return checked(
        pb.GenerateRequest,
        request=encode(request, pb.ImageRequest),
        idempotency_key=idempotency_key,
        preview_interval_steps=preview_interval_steps,
    )
