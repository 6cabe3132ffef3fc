"""Server-sent events: those of images in OpenAI's format, those of jobs, and the answers that send them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from pentimento.domain.errors import Internal, PentimentoError
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed, Progress
from services.edge.api.answers import (
    accepted_document,
    failure_document,
    image_document,
    quality_of,
    quality_word,
    size_of,
    usage_of,
)
from services.edge.api.bodies import API_NAMES
from services.edge.http.answers import Base64, Receive, Send, document_bytes, error_document, while_connected

HEARTBEAT = b": still generating\n\n"
HEARTBEAT_S = 15.0
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
Encoder = Callable[[GenerateEvent], bytes | None]


def sse(name: str, document: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), document_bytes(document, ensure_ascii=True))


def typed_sse(name: str, document: Mapping[str, Any]) -> bytes:
    """Return a server-sent event; its document has the name too."""
    return sse(name, {"type": name, **document})


def error_event(error: PentimentoError) -> bytes:
    """Return the event that ends a stream before its image is finished."""
    return sse("error", error_document(error, API_NAMES))


def ended_early() -> Internal:
    return Internal("STREAM_ENDED_EARLY", "the stream ended without an image and without an error")


@dataclass
class ImageEvents:
    """Encode the events of one call.

    `kind` is image_generation or image_edit, `partial_images` the most previews of an image, `created_s` a Unix
    time."""

    kind: str
    partial_images: int
    provenance: bool
    created_s: int
    _shown: Counter[int] = field(default_factory=Counter, init=False)

    def of(self, event: GenerateEvent) -> bytes | None:
        """Return the bytes that the client receives for an event; None for none."""
        if isinstance(event, Completed):
            return typed_sse(f"{self.kind}.completed", self._completed(event))
        if isinstance(event, ImageFailed):
            return typed_sse(f"{self.kind}.failed", failure_document(event))
        if isinstance(event, Progress) and event.preview and self._shown[event.image_index] < self.partial_images:
            self._shown[event.image_index] += 1
            return typed_sse(f"{self.kind}.partial_image", self._partial(event))
        return None

    def _partial(self, event: Progress) -> dict[str, Any]:
        return {
            "b64_json": Base64(event.preview),
            "partial_image_index": self._shown[event.image_index] - 1,
            "image_index": event.image_index,
            "created_at": self.created_s,
            "background": "opaque",
            # Previews are always PNG.
            "output_format": "png",
            "quality": quality_word(event.saved_steps),
            "size": f"{event.width_px}x{event.height_px}",
            "step": event.step,
            "step_count": event.step_count,
        }

    def _completed(self, completed: Completed) -> dict[str, Any]:
        return {
            **image_document(completed, self.provenance),
            "created_at": self.created_s,
            "background": "opaque",
            "output_format": completed.format.value,
            "quality": quality_of(completed),
            "size": size_of(completed),
            "usage": usage_of([completed]),
        }


def job_event(event: GenerateEvent) -> bytes | None:
    """Return the bytes of an event for the listeners of a job; None for none. `preview` of the progress is a PNG in
    base64, null at most steps."""
    match event:
        case Accepted():
            return sse("job.accepted", accepted_document(event))
        case Progress():
            steps = {"step": event.step, "step_count": event.step_count, "image_index": event.image_index}
            return typed_sse("job.progress", {**steps, "preview": Base64(event.preview) if event.preview else None})
        case ImageFailed():
            return typed_sse("job.image_failed", failure_document(event))
        case Completed():
            return typed_sse("job.completed", {"id": event.request_id, "image_index": event.image_index})
    return None


def job_failed_event(error: PentimentoError) -> bytes:
    """Return the event that ends the stream of a failed job."""
    return typed_sse("job.failed", error_document(error, API_NAMES))


async def answer_events(
    receive: Receive,
    send: Send,
    events: AsyncGenerator[GenerateEvent, None],
    encoded: Encoder,
    last_event: Callable[[PentimentoError], Awaitable[bytes]] | None = None,
    *,
    only_head: bool = False,
) -> None:
    """Answer with a stream of events, which are closed if the client disconnects. An error before the first event
    becomes the answer's status; a later one the last event, by default an `error`. `only_head`: without events, for
    HEAD."""
    async with while_connected(receive), aclosing(events):
        first = await anext(events)
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        try:
            if not only_head:
                await send_part(send, encoded(first))
                async with aclosing(with_heartbeats(events)) as beating:
                    async for event in beating:
                        await send_part(send, HEARTBEAT if event is None else encoded(event))
        except PentimentoError as error:
            await send_part(send, await last_event(error) if last_event is not None else error_event(error))
    # Only once nothing watches the client any more.
    await send({"type": "http.response.body", "body": b"", "more_body": False})


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
