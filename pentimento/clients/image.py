"""Call the public API."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc.aio

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import ImageServiceStub
from pentimento.clients.errors import domain_errors
from pentimento.clients.image_chunks import DEFAULT_MESSAGE_BYTES, ImageJoiner
from pentimento.domain.adapters import Adapter
from pentimento.domain.image_request import (
    Accepted,
    Explanation,
    GenerateEvent,
    ImageRequest,
    ModelInfo,
    PinnedImage,
    ReplayRequest,
    RequestStatus,
)
from pentimento.domain.jobs import RequestPage, RequestQuery, ResultUrl, ResultUrlServer
from pentimento.domain.requests import RequestState
from pentimento.wire.codec import checked, decode, encode, member_of


class ImageClient:
    """Call pentimento.api.image.v1.ImageService; closing the stream of `generate` cancels the request."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ImageServiceStub(channel)

    async def generate(
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
        async with aclosing(_events(self._stub.Generate(message))) as events:
            async for event in events:
                yield event

    async def replay(
        self, request: ReplayRequest, idempotency_key: str = "", preview_interval_steps: int = 0
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress, completed of the replay of a request."""
        message = encode(request, pb.ReplayRequest)
        options = checked(
            pb.ReplayRequest, idempotency_key=idempotency_key, preview_interval_steps=preview_interval_steps
        )
        message.MergeFrom(options)
        message.max_message_bytes = DEFAULT_MESSAGE_BYTES
        async with aclosing(_events(self._stub.Replay(message))) as events:
            async for event in events:
                yield event

    async def submit(
        self, request: ImageRequest, idempotency_key: str = "", preview_interval_steps: int = 0, webhook_url: str = ""
    ) -> Accepted:
        """Submit the request as a job and return its id. `webhook_url` is called once it has ended."""
        generate = generate_to_proto(request, idempotency_key, preview_interval_steps)
        webhook = checked(pb.Webhook, "webhook", url=webhook_url) if webhook_url else None
        with domain_errors():
            answer = await self._stub.Submit(pb.SubmitRequest(generate=generate, webhook=webhook))
        return decode(answer, Accepted)

    async def attach(self, request_id: str) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress, completed of an earlier request; closing the generator cancels no job."""
        message = checked(pb.AttachRequest, request_id=request_id, max_message_bytes=DEFAULT_MESSAGE_BYTES)
        async with aclosing(_events(self._stub.Attach(message))) as events:
            async for event in events:
                yield event

    async def list_requests(self, query: RequestQuery, timeout_s: float | None = None) -> RequestPage:
        """Return a page of the tenant's requests, newest first."""
        message = encode(query, pb.ListRequestsRequest)
        with domain_errors():
            return decode(await self._stub.ListRequests(message, timeout=timeout_s), RequestPage)

    async def result_url(
        self, request_id: str, expires_in_ms: int | None = None, timeout_s: float | None = None
    ) -> ResultUrl:
        """Return a URL of the request's image, readable without a token until it expires."""
        message = checked(pb.GetResultUrlRequest, request_id=request_id, expires_in_ms=expires_in_ms)
        with domain_errors():
            return decode(await self._stub.GetResultUrl(message, timeout=timeout_s), ResultUrl)

    async def webhook_key(self, timeout_s: float | None = None) -> str:
        """Return the key that signs the webhooks of the caller's tenant, in the form of Standard Webhooks."""
        with domain_errors():
            return (await self._stub.GetWebhookKey(pb.GetWebhookKeyRequest(), timeout=timeout_s)).key

    async def pin(self, request_id: str, duration_ms: int, timeout_s: float | None = None) -> PinnedImage:
        """Keep the start of a completed request's image for a time from now, so that it can be replayed."""
        message = checked(pb.PinRequest, request_id=request_id, duration_ms=duration_ms)
        with domain_errors():
            return decode(await self._stub.Pin(message, timeout=timeout_s), PinnedImage)

    async def unpin(self, request_id: str, timeout_s: float | None = None) -> None:
        """End the pin of a request."""
        message = checked(pb.UnpinRequest, request_id=request_id)
        with domain_errors():
            await self._stub.Unpin(message, timeout=timeout_s)

    async def cancel(self, request_id: str, timeout_s: float | None = None) -> RequestState:
        """Cancel the request and return its state afterwards."""
        message = checked(pb.CancelRequest, request_id=request_id)
        with domain_errors():
            answer = await self._stub.Cancel(message, timeout=timeout_s)
        return member_of(answer.state, RequestState, pb.RequestState, "state")

    async def get_request(
        self, request_id: str, omit_image: bool = False, timeout_s: float | None = None
    ) -> RequestStatus:
        """Return the request's state, with its image if it is completed. NotFound unless the tenant has such a
        request."""
        message = checked(pb.GetRequestRequest, request_id=request_id, omit_image=omit_image)
        with domain_errors():
            return decode(await self._stub.GetRequest(message, timeout=timeout_s), RequestStatus)

    async def explain(
        self, request: ImageRequest, timeout_s: float | None = None, *, neighbour_count: int = 0
    ) -> Explanation:
        """Return the route that `generate` would take now, and the cache's nearest entries."""
        message = checked(pb.ExplainRequest, request=encode(request, pb.ImageRequest), neighbour_count=neighbour_count)
        with domain_errors():
            return decode(await self._stub.Explain(message, timeout=timeout_s), Explanation)

    async def list_models(self, timeout_s: float | None = None) -> tuple[ModelInfo, ...]:
        """Return the served models with their limits."""
        with domain_errors():
            answer = await self._stub.ListModels(pb.ListModelsRequest(), timeout=timeout_s)
        return tuple(decode(model, ModelInfo) for model in answer.models)

    async def list_adapters(self, timeout_s: float | None = None) -> tuple[Adapter, ...]:
        """Return the LoRAs and ControlNets that requests may name."""
        with domain_errors():
            answer = await self._stub.ListModels(pb.ListModelsRequest(), timeout=timeout_s)
        return tuple(decode(adapter, Adapter) for adapter in answer.adapters)

    async def result_url_server(self, timeout_s: float | None = None) -> ResultUrlServer | None:
        """Return the service behind URLs of images; None while the frontdoor does not know."""
        with domain_errors():
            answer = await self._stub.ListModels(pb.ListModelsRequest(), timeout=timeout_s)
        return (
            member_of(answer.result_url_server, ResultUrlServer, pb.ResultUrlServer, "result_url_server")
            if answer.result_url_server
            else None
        )


def generate_to_proto(request: ImageRequest, idempotency_key: str, preview_interval_steps: int) -> pb.GenerateRequest:
    """Return the message of a request. InvalidArgument names a value that it cannot contain."""
    return checked(
        pb.GenerateRequest,
        request=encode(request, pb.ImageRequest),
        idempotency_key=idempotency_key,
        preview_interval_steps=preview_interval_steps,
    )


async def _events(call: Any) -> AsyncGenerator[GenerateEvent, None]:
    """Yield the events of a call; closing the generator cancels it."""
    try:
        with domain_errors():
            images = ImageJoiner()
            async for message in call:
                if (event := images.event(message)) is not None:
                    yield event
    finally:
        call.cancel()
