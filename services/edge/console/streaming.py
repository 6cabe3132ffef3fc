"""Stream the console's events: accepted, routed, progress, completed, failed, each with the index of its image."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import InvalidArgument, PentimentoError
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed, Progress, Routed
from pentimento.domain.provenance_document import as_json, provenance_as_json
from services.edge.http.bodies import HeldBody, read_body
from services.edge.http.callers import caller_of, token_of
from services.edge.http.documents import Base64
from services.edge.http.leaving import Receive, Scope, Send, while_connected
from services.edge.images.answering import failure_document
from services.edge.images.events import HEARTBEAT, error_event, sse
from services.edge.images.routes import JSON_TYPE, introduce, is_json, may_be_large
from services.edge.images.streaming import STREAM_HEADERS, send_part, with_heartbeats
from services.edge.parts import EdgeParts

OpenEvents = Callable[[ImageClient], AsyncGenerator[GenerateEvent, None]]


def event_document(event: GenerateEvent) -> tuple[str, dict[str, Any]]:
    """Return the name and the JSON values of an event; images are in base64."""
    match event:
        case Accepted():
            ids = list(event.image_request_ids)
            return "accepted", {"request_id": event.request_id, "replayed": event.replayed, "image_request_ids": ids}
        case Routed():
            return "routed", {"route": as_json(event.route), "image_index": event.image_index}
        case Progress():
            steps = {"step": event.step, "step_count": event.step_count, "attempt_number": event.attempt_number}
            return "progress", {**steps, "preview": Base64(event.preview), "image_index": event.image_index}
        case Completed():
            image = {**completed_document(event), "image_index": event.image_index}
            return "completed", {**image, "image": Base64(event.image)}
        case ImageFailed():
            return "failed", failure_document(event)


def completed_document(completed: Completed) -> dict[str, Any]:
    """Return a finished image's values without its bytes. The seed is a text: JavaScript's numbers are exact up to
    2^53."""
    provenance = provenance_as_json(completed.provenance)
    provenance["spec"]["seed"] = str(completed.provenance.spec.seed)
    return {
        "request_id": completed.request_id,
        "format": completed.format.value,
        "width_px": completed.width_px,
        "height_px": completed.height_px,
        "provenance": provenance,
    }


class StreamEndpoint:
    """Answer a call with the events of its images, as an ASGI application.

    `opens` turns a body into the frontdoor's call. A client that disconnects cancels its request, which frees the
    worker within a step."""

    def __init__(self, parts: EdgeParts, opens: Callable[[bytes], OpenEvents]) -> None:
        self._parts = parts
        self._opens = opens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        token = token_of(request)
        with self._parts.bodies.held(caller_of(request)) as held:
            open_events = self._opens(await json_body(self._parts, request, held))
            async with (
                while_connected(receive),
                self._parts.frontdoor.channel(token) as channel,
                aclosing(open_events(ImageClient(channel))) as events,
            ):
                await send_events(events, send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def json_body(parts: EdgeParts, request: Request, held: HeldBody) -> bytes:
    """Return the body of a call. InvalidArgument for another Content-Type: other sites' pages may post forms here."""
    if not is_json(request):
        raise InvalidArgument.of("Content-Type", f"must be {JSON_TYPE}")
    if may_be_large(request):
        await introduce(parts, token_of(request))
    return await read_body(request, held, parts.bodies.max_body_bytes)


async def send_events(events: AsyncGenerator[GenerateEvent, None], send: Send) -> None:
    """Send the events. An error before the request is accepted becomes the answer's status."""
    first = await anext(events)
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    await send_part(send, sse(*event_document(first)))
    try:
        async with aclosing(with_heartbeats(events)) as beating:
            async for event in beating:
                await send_part(send, HEARTBEAT if event is None else sse(*event_document(event)))
    except PentimentoError as error:
        await send_part(send, error_event(error))
