"""`/v1/images/generations` and `/v1/images/edits`: read the call, run it at the frontdoor, answer."""

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
from services.edge.images.answering import images_document
from services.edge.images.fields import EDIT_FIELDS, GENERATION_FIELDS, JSON_EDIT_FIELDS, by_field_name
from services.edge.images.form_values import edit_form, edit_of_json
from services.edge.images.image_call import ImageCall, image_call, with_alias
from services.edge.images.previews import UsualSteps
from services.edge.images.streaming import FrontdoorCall, ImageStream
from services.edge.images.values import read_json, validated
from services.edge.parts import EdgeParts

GENERATION_FIELDS_BY_NAME = by_field_name(GENERATION_FIELDS)
EDIT_FIELDS_BY_NAME = by_field_name(EDIT_FIELDS)
JSON_EDIT_FIELDS_BY_NAME = by_field_name(JSON_EDIT_FIELDS)
JSON_TYPE = "application/json"
# The largest body that is read before the token is known.
LARGE_BODY_BYTES = 64 * 1024
LARGE_DIGITS = 18
INTRODUCTION_TIMEOUT_S = 10.0

Reader = Callable[[EdgeParts, Request, HeldBody], Awaitable[ImageCall]]


def image_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the routes of images."""
    steps, offers = UsualSteps(), UrlOffers(parts)
    generations = ImageEndpoint(parts, steps, offers, "image_generation", read_generation)
    edits = ImageEndpoint(parts, steps, offers, "image_edit", read_edit)
    return [
        Route("/v1/images/generations", generations, methods=["POST"]),
        Route("/v1/images/edits", edits, methods=["POST"]),
    ]


@dataclass(frozen=True)
class ImageEndpoint:
    """Answer one kind of call as an ASGI application; `kind` names its events, `read` validates its body."""

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
            call = with_alias(await self.read(self.parts, request, held), self.parts.model_aliases)
            if call.as_urls:
                await self.url_offers.check(token)
            running = FrontdoorCall(self.parts, self.usual_steps, token, key, call, scope)
            if call.stream:
                await ImageStream(running, self.kind)(scope, receive, send)
                return
            ended = await running.finished(receive)
        urls = await running.urls(ended, origin_of(request, self.parts)) if call.as_urls else ()
        document = images_document(ended.completed, ended.failed, int(time.time()), call.provenance, urls)
        await DocumentResponse(document)(scope, receive, send)


def may_be_large(request: Request) -> bool:
    """Return whether a body is larger than a prompt needs, or of unknown size."""
    declared = request.headers.get("content-length", "")
    return not declared.isdecimal() or len(declared) > LARGE_DIGITS or int(declared) > LARGE_BODY_BYTES


async def introduce(parts: EdgeParts, token: str | None) -> None:
    """Test a token at the frontdoor before a large body is read. Raises the frontdoor's error for an unknown one."""
    async with parts.frontdoor.channel(token) as channel:
        await ImageClient(channel).list_models(INTRODUCTION_TIMEOUT_S)


def is_json(request: Request) -> bool:
    """Return whether the Content-Type is JSON."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON_TYPE


async def read_document(parts: EdgeParts, request: Request, held: HeldBody) -> dict[str, Any]:
    """Read a JSON body."""
    return read_json(await read_body(request, held, parts.settings.http.max_body_bytes))


async def read_generation(parts: EdgeParts, request: Request, held: HeldBody) -> ImageCall:
    """Read a JSON body. InvalidArgument for another Content-Type: other sites' pages may post forms here."""
    if not is_json(request):
        raise InvalidArgument.of("Content-Type", f"must be {JSON_TYPE}")
    return image_call(validated(await read_document(parts, request, held), GENERATION_FIELDS_BY_NAME))


async def read_edit(parts: EdgeParts, request: Request, held: HeldBody) -> ImageCall:
    """Read a form, or a JSON body with data URLs."""
    http = parts.settings.http
    if is_json(request):
        edit = edit_of_json(await read_document(parts, request, held), JSON_EDIT_FIELDS_BY_NAME)
    else:
        edit = edit_form(await read_form(request, held, http.max_body_bytes, http.max_parts), EDIT_FIELDS_BY_NAME)
    return image_call(edit.values, edit.image, edit.mask)
