"""The console's calls for images: their bodies, and streams of accepted, routed, progress, completed and failed."""

import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from starlette.requests import Request

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import (
    Accepted,
    Completed,
    GenerateEvent,
    ImageFailed,
    Progress,
    ReplayInput,
    ReplayRequest,
    Routed,
)
from pentimento.domain.provenance_document import as_json, provenance_as_json
from services.edge.api.answers import failure_document
from services.edge.api.bodies import EditBody
from services.edge.api.events import answer_events, sse
from services.edge.api.fields import UINT64, Body, Data, ImageText, Name, RequiredName, Whole
from services.edge.api.images import events_of, held_body, read_document
from services.edge.http.answers import Base64, Receive, Scope, Send
from services.edge.http.callers import token_of
from services.edge.parts import EdgeParts

MAX_PREVIEW_INTERVAL = 1000
MAX_NEIGHBOURS = 50
MAX_INPUTS = 8
SEED_TEXT = re.compile("[0-9]{1,20}", re.ASCII)
PreviewInterval = Annotated[int, Field(ge=0, le=MAX_PREVIEW_INTERVAL), Whole]
OpenEvents = Callable[[ImageClient], AsyncGenerator[GenerateEvent, None]]


def seed_number(value: Any) -> Any:
    """Return a seed given as a text: JavaScript's numbers are exact up to 2^53, seeds go up to 2^64."""
    return int(value) if isinstance(value, str) and SEED_TEXT.fullmatch(value) else value


class PlaygroundBody(EditBody):
    """A request of the playground. A tab receives all events of its images."""

    seed: Annotated[int, Field(ge=0, le=UINT64), Whole, BeforeValidator(seed_number)] | None = None
    image: ImageText | None = None
    mask: ImageText = b""
    preview_every_steps: PreviewInterval = 0

    def init_image(self) -> InitImage | None:
        """Return the image to start from, if there is one. InvalidArgument for a mask alone."""
        if self.mask and self.image is None:
            raise InvalidArgument.of("mask", "must come with an image")
        return None if self.image is None else InitImage(self.image, self.strength, self.mask)

    def opened(self) -> OpenEvents:
        request = self.to_request()

        def events(client: ImageClient) -> AsyncGenerator[GenerateEvent, None]:
            def ask(key: str, deadline_ms: int | None) -> AsyncGenerator[GenerateEvent, None]:
                return client.generate(replace(request, deadline_ms=deadline_ms), key, self.preview_every_steps)

            return events_of(client, ask, deadline_ms=request.deadline_ms)

        return events


class ExplainBody(PlaygroundBody):
    """A request for the explanation of its route."""

    n: Literal[1] = 1
    neighbour_count: Annotated[int, Field(ge=0, le=MAX_NEIGHBOURS), Whole] = 0


class ReplayInputBody(Body):
    field: Name
    data: Data


class ReplayBody(Body):
    """A replay, with the input images of the request."""

    request_id: RequiredName
    inputs: list[ReplayInputBody] = Field([], max_length=MAX_INPUTS)
    preview_every_steps: PreviewInterval = 0

    def opened(self) -> OpenEvents:
        inputs = tuple(ReplayInput(one.field, one.data) for one in self.inputs)
        request = ReplayRequest(self.request_id, inputs)
        return lambda client: events_of(client, lambda key, _: client.replay(request, key, self.preview_every_steps))


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
    """Return a finished image's values without its bytes. The seed is a text, as in `seed_number`."""
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

    A client that disconnects cancels its request, which frees the worker within a step."""

    def __init__(self, parts: EdgeParts, body: type[PlaygroundBody] | type[ReplayBody]) -> None:
        self._parts = parts
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        async with held_body(self._parts, request) as held:
            open_events = self._body.read(await read_document(request, held)).opened()
            async with self._parts.frontdoor.images(token_of(request)) as client:
                await answer_events(receive, send, open_events(client), lambda event: sse(*event_document(event)))
