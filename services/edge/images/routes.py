"""`/v1/images/generations` and `/v1/images/edits`: from HTTP to the frontdoor and back."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from pentimento.clients.image import ImageClient
from pentimento.domain.errors import InvalidArgument
from services.edge.http.bodies import HeldBody, read_body
from services.edge.http.callers import caller_of, idempotency_key_of, token_of
from services.edge.http.documents import DocumentResponse
from services.edge.http.forms import read_form
from services.edge.http.leaving import Receive, Scope, Send
from services.edge.images.addresses import UrlOffers, origin_of
from services.edge.images.answering import pictures_document
from services.edge.images.asking import AskedPictures, asked_pictures, with_alias
from services.edge.images.fields import EDIT_FIELDS, GENERATION_FIELDS, JSON_EDIT_FIELDS, by_field_name
from services.edge.images.form_values import edit_form, edit_of_json
from services.edge.images.painting import PictureErrand, PictureStream
from services.edge.images.previews import UsualSteps
from services.edge.images.values import judged, read_json
from services.edge.parts import EdgeParts

GENERATION_FIELDS_BY_NAME = by_field_name(GENERATION_FIELDS)
EDIT_FIELDS_BY_NAME = by_field_name(EDIT_FIELDS)
JSON_EDIT_FIELDS_BY_NAME = by_field_name(JSON_EDIT_FIELDS)
JSON_TYPE = "application/json"
# What a stranger may make the process read.
LARGE_BODY_BYTES = 64 * 1024
LARGE_DIGITS = 18
INTRODUCTION_TIMEOUT_S = 10.0

Reader = Callable[[EdgeParts, Request, HeldBody], Awaitable[AskedPictures]]


def image_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the routes of pictures."""
    steps, offers = UsualSteps(), UrlOffers(parts)
    generations = PictureCall(parts, steps, offers, "image_generation", read_generation)
    edits = PictureCall(parts, steps, offers, "image_edit", read_edit)
    return [
        Route("/v1/images/generations", generations, methods=["POST"]),
        Route("/v1/images/edits", edits, methods=["POST"]),
    ]


@dataclass(frozen=True)
class PictureCall:
    """An ASGI application that answers one kind of call, named as its events are; `read` judges what came."""

    parts: EdgeParts
    usual_steps: UsualSteps
    url_offers: UrlOffers
    kind: str
    read: Reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        token, key = token_of(request), idempotency_key_of(request)
        if may_be_large(request):
            await introduce(self.parts, token)
        with self.parts.bodies.held(caller_of(request)) as held:
            asked = with_alias(await self.read(self.parts, request, held), self.parts.model_aliases)
            if asked.as_urls:
                await self.url_offers.check(token)
            painting = PictureErrand(self.parts, self.usual_steps, token, key, asked, scope)
            if asked.stream:
                await PictureStream(painting, self.kind)(scope, receive, send)
                return
            painted = await painting.finished(receive)
        urls = await painting.urls(painted, origin_of(request, self.parts)) if asked.as_urls else ()
        document = pictures_document(painted.completed, painted.failed, int(time.time()), asked.provenance, urls)
        await DocumentResponse(document)(scope, receive, send)


def may_be_large(request: Request) -> bool:
    """Return whether a body is more than a prompt needs, or does not say how much it is."""
    declared = request.headers.get("content-length", "")
    return not declared.isdecimal() or len(declared) > LARGE_DIGITS or int(declared) > LARGE_BODY_BYTES


async def introduce(parts: EdgeParts, token: str | None) -> None:
    """Have the frontdoor judge a token before anything large is read. Raises what it says of an unknown one."""
    async with parts.frontdoor.channel(token) as channel:
        await ImageClient(channel).list_models(INTRODUCTION_TIMEOUT_S)


def is_json(request: Request) -> bool:
    """Return whether a body says that it is JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON_TYPE


async def read_document(parts: EdgeParts, request: Request, held: HeldBody) -> dict[str, Any]:
    """Return the object that a JSON body is."""
    return read_json(await read_body(request, held, parts.settings.http.max_body_bytes))


async def read_generation(parts: EdgeParts, request: Request, held: HeldBody) -> AskedPictures:
    """Read a JSON body. InvalidArgument for another Content-Type: pages may send forms anywhere, unasked."""
    if not is_json(request):
        raise InvalidArgument.of("Content-Type", f"must be {JSON_TYPE}")
    return asked_pictures(judged(await read_document(parts, request, held), GENERATION_FIELDS_BY_NAME))


async def read_edit(parts: EdgeParts, request: Request, held: HeldBody) -> AskedPictures:
    """Read a form, or a JSON body with data URLs."""
    http = parts.settings.http
    if is_json(request):
        edit = edit_of_json(await read_document(parts, request, held), JSON_EDIT_FIELDS_BY_NAME)
    else:
        edit = edit_form(await read_form(request, held, http.max_body_bytes, http.max_parts), EDIT_FIELDS_BY_NAME)
    return asked_pictures(edit.values, edit.image, edit.mask)
