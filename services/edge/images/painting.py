"""One call for a picture: the frontdoor's stream on behalf of its caller, and the two ways to answer it."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import Internal, PentimentoError, Unavailable
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, PictureFailed
from services.edge.http.leaving import Receive, Scope, Send, while_connected
from services.edge.images.addresses import address_pending, urls_of
from services.edge.images.asking import AskedPictures
from services.edge.images.events import HEARTBEAT, PictureEvents, error_event
from services.edge.images.previews import UsualSteps, preview_interval
from services.edge.images.waiting import events_of
from services.edge.parts import EdgeParts

HEARTBEAT_S = 15.0
# Of a request's scope: the id under which the frontdoor accepted it, which its answer tells.
REQUEST_ID = "pentimento.request_id"


@dataclass(frozen=True)
class EndedPictures:
    """Of one call, in the order of their indexes: those that there are, and those that will not come."""

    completed: list[Completed] = field(default_factory=list)
    failed: list[PictureFailed] = field(default_factory=list)


@dataclass(frozen=True)
class PictureErrand:
    """What a call needs besides what it asks for. The id under which it was accepted is noted in its `scope`."""

    parts: EdgeParts
    usual_steps: UsualSteps
    token: str | None
    idempotency_key: str
    asked: AskedPictures
    scope: Scope

    async def events(self) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress, completed. Closing it cancels the request."""
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

    async def urls(self, painted: EndedPictures, origin: str) -> list[str]:
        """Return an address for each picture; those of this process begin with its `origin`. Where there is none yet,
        raise what leads to the pictures that are there: Unavailable for who has a key, by which a retry finds them,
        else FailedPrecondition ADDRESS_PENDING."""
        try:
            async with self.parts.frontdoor.channel(self.token) as channel:
                return await urls_of(ImageClient(channel), painted.completed, origin)
        except Unavailable as error:
            if self.idempotency_key:
                raise
            raise address_pending(self.scope[REQUEST_ID], error) from error

    async def finished(self, receive: Receive) -> EndedPictures:
        """Return what came of the call. Cancelled CLIENT_LEFT, and the request with it, where the client leaves
        before."""
        painted = EndedPictures()
        async with while_connected(receive), aclosing(self.events()) as events:
            async for event in events:
                if isinstance(event, Completed):
                    painted.completed.append(event)
                elif isinstance(event, PictureFailed):
                    painted.failed.append(event)
        if not painted.completed:
            raise ended_early()
        painted.completed.sort(key=lambda one: one.image_index)
        return painted


class PictureStream:
    """Answers with events. What is refused before it is accepted is refused by the answer's status."""

    def __init__(self, painting: PictureErrand, kind: str) -> None:
        self._painting = painting
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = PictureEvents(self._kind, self._painting.asked, int(time.time()))
        async with while_connected(receive), aclosing(self._painting.events()) as events:
            first = await anext(events, None)
            if first is None:
                raise ended_early()
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            await send_part(send, told.of(first))
            await self._tell(told, events, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, told: PictureEvents, events: AsyncGenerator[GenerateEvent, None], send: Send) -> None:
        try:
            async with aclosing(with_heartbeats(events)) as beating:
                async for event in beating:
                    await send_part(send, HEARTBEAT if event is None else told.of(event))
            if not told.completed_count:
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
    """Yield the events, and None whenever there was none for so long: who waits learns that somebody is there."""
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
