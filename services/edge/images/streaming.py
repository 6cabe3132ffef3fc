"""Run a call for images at the frontdoor, and answer it with one document or with a stream of events."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import Internal, PentimentoError, Unavailable
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed
from services.edge.http.leaving import Receive, Scope, Send, while_connected
from services.edge.images.addresses import address_pending, urls_of
from services.edge.images.events import HEARTBEAT, ImageEvents, error_event
from services.edge.images.image_call import ImageCall
from services.edge.images.previews import UsualSteps, preview_interval
from services.edge.images.waiting import events_of
from services.edge.parts import EdgeParts

HEARTBEAT_S = 15.0
# Key of a request's scope: the frontdoor's request id, for the header X-Request-Id.
REQUEST_ID = "pentimento.request_id"


@dataclass(frozen=True)
class EndedImages:
    """Hold the finished and the failed images of a call, in the order of their indexes."""

    completed: list[Completed] = field(default_factory=list)
    failed: list[ImageFailed] = field(default_factory=list)


@dataclass(frozen=True)
class FrontdoorCall:
    """Run an image call for its caller. The request id is stored in its `scope` once the frontdoor accepted it."""

    parts: EdgeParts
    usual_steps: UsualSteps
    token: str | None
    idempotency_key: str
    asked: ImageCall
    scope: Scope

    async def events(self) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress and completed. Closing the generator cancels the request."""
        async with self.parts.frontdoor.channel(self.token) as channel:
            client = ImageClient(channel)
            interval = await self._preview_interval(client)
            request = self.asked.request

            def ask(key: str, deadline_ms: int | None) -> AsyncGenerator[GenerateEvent, None]:
                asked = replace(request, deadline_ms=deadline_ms)
                return client.generate(asked, key, interval, omit_progress=True)

            async with aclosing(events_of(client, ask, self.idempotency_key, request.deadline_ms)) as events:
                async for event in events:
                    if isinstance(event, Accepted):
                        self.scope[REQUEST_ID] = event.request_id
                    yield event

    async def _preview_interval(self, client: ImageClient) -> int:
        if not self.asked.stream or not self.asked.partial_images:
            return 0
        request = self.asked.request
        steps = request.num_inference_steps or await self.usual_steps.of(request.model, client)
        return preview_interval(steps, self.asked.partial_images)

    async def urls(self, ended: EndedImages, origin: str) -> list[str]:
        """Return a URL for each image; URLs of this process begin with `origin`.

        If no URL is available yet, raise an error that leads to the finished images: Unavailable if the caller has a
        key, which a retry finds them by, else FailedPrecondition ADDRESS_PENDING."""
        try:
            async with self.parts.frontdoor.channel(self.token) as channel:
                return await urls_of(ImageClient(channel), ended.completed, origin)
        except Unavailable as error:
            if self.idempotency_key:
                raise
            raise address_pending(self.scope[REQUEST_ID], error) from error

    async def finished(self, receive: Receive) -> EndedImages:
        """Return the images of the call. If the client disconnects first, cancel the request and raise Cancelled
        CLIENT_LEFT."""
        ended = EndedImages()
        async with while_connected(receive), aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, Completed):
                    ended.completed.append(event)
                elif isinstance(event, ImageFailed):
                    ended.failed.append(event)
        if not ended.completed:
            raise ended_early()
        ended.completed.sort(key=lambda one: one.image_index)
        return ended


class ImageStream:
    """Answer a call with events. An error before the request is accepted becomes the answer's status."""

    def __init__(self, call: FrontdoorCall, kind: str) -> None:
        self._call = call
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        encoder = ImageEvents(self._kind, self._call.asked, int(time.time()))
        async with while_connected(receive), aclosing(self._call.events()) as events:
            first = await anext(events, None)
            if first is None:
                raise ended_early()
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await send_part(send, encoder.of(first))
            await self._send_events(encoder, events, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, encoder: ImageEvents, events: AsyncGenerator[GenerateEvent, None], send: Send) -> None:
        try:
            async with aclosing(with_heartbeats(events)) as beating:
                async for event in beating:
                    await send_part(send, HEARTBEAT if event is None else encoder.of(event))
            if not encoder.completed_count:
                raise ended_early()
        except PentimentoError as error:
            await send_part(send, error_event(error))


def ended_early() -> Internal:
    return Internal("STREAM_ENDED_EARLY", "the stream ended without an image and without an error")


STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


async def send_part(send: Send, part: bytes | None) -> None:
    if part is not None:
        await send({"type": "http.response.body", "body": part, "more_body": True})


async def with_heartbeats(
    events: AsyncGenerator[GenerateEvent, None], every_s: float = HEARTBEAT_S
) -> AsyncGenerator[GenerateEvent | None, None]:
    """Yield the events, and None after every `every_s` seconds without one: a heartbeat for the client."""
    coming: asyncio.Future[GenerateEvent] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait([coming], timeout=every_s)
            if not done:
                yield None
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            yield event
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait([coming])
