"""`/v1/images/generations` and `/v1/images/edits`: read the call, run it at the frontdoor, answer."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from pentimento.clients.image import ImageClient
from pentimento.clients.retries import RetryPolicy, StreamCall, retried_events
from pentimento.domain.errors import FailedPrecondition, FieldViolation, InvalidArgument, PentimentoError, Unavailable
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed, ImageRequest
from pentimento.domain.jobs import ResultUrl, ResultUrlServer
from services.edge.api.answers import images_document
from services.edge.api.bodies import EditRequest, GenerationRequest, JsonEditRequest
from services.edge.api.events import ImageEvents, answer_events, ended_early
from services.edge.http.answers import DocumentResponse, Receive, Scope, Send, while_connected
from services.edge.http.bodies import HeldBody, read_body, read_form, read_json
from services.edge.http.callers import caller_of, idempotency_key_of, token_of
from services.edge.parts import EdgeParts

JSON_TYPE = "application/json"
# The largest body that is read before the token is known.
LARGE_BODY_BYTES = 64 * 1024
LARGE_DIGITS = 18
CALL_TIMEOUT_S = 10.0
# How long answers of the frontdoor about its models are good.
FRESH_S = 10.0
LIST_TIMEOUT_S = 5.0
MAX_INTERVAL_STEPS = 1000
# Key of a request's scope: the frontdoor's request id, for the header X-Request-Id.
REQUEST_ID = "pentimento.request_id"
URL_FIELD = "response_format"


def image_routes(parts: EdgeParts) -> list[BaseRoute]:
    offers = FrontdoorOffers(parts)
    generations = ImageEndpoint(parts, offers, "image_generation", read_generation)
    edits = ImageEndpoint(parts, offers, "image_edit", read_edit)
    return [
        Route("/v1/images/generations", generations, methods=["POST"]),
        Route("/v1/images/edits", edits, methods=["POST"]),
    ]


@dataclass(frozen=True)
class ImageEndpoint:
    """Answer one kind of call as an ASGI application; `kind` names its events, `read` validates its body."""

    parts: EdgeParts
    offers: "FrontdoorOffers"
    kind: str
    read: Callable[[Request, HeldBody], Awaitable[GenerationRequest]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        token, key = token_of(request), idempotency_key_of(request)
        async with held_body(self.parts, request) as held:
            body = await self.read(request, held)
            asked = body.to_request(self.parts.model_aliases)
            if body.as_urls:
                await self.offers.check_urls(token)
            partial_images = body.partial_images
            call = FrontdoorCall(self.parts, self.offers, token, key, asked, partial_images, scope)
            if body.stream:
                encoder = ImageEvents(self.kind, partial_images, body.provenance, int(time.time()))
                await answer_events(receive, send, call.events(), encoder.of)
                return
            ended = await call.finished(receive)
        urls = await call.urls(ended, origin_of(request, self.parts)) if body.as_urls else ()
        document = images_document(ended.completed, ended.failed, int(time.time()), body.provenance, urls)
        await DocumentResponse(document)(scope, receive, send)


def may_be_large(request: Request) -> bool:
    """Return whether a body is larger than a prompt needs, or of unknown size."""
    declared = request.headers.get("content-length", "")
    return not declared.isdecimal() or len(declared) > LARGE_DIGITS or int(declared) > LARGE_BODY_BYTES


@asynccontextmanager
async def held_body(parts: EdgeParts, request: Request) -> AsyncIterator[HeldBody]:
    """Yield the body of a call, counted until the block is left. Before a large one is read the frontdoor tests the
    token, and its error for an unknown one is raised."""
    if may_be_large(request):
        async with parts.frontdoor.images(token_of(request)) as client:
            await client.list_models(CALL_TIMEOUT_S)
    with parts.bodies.held(caller_of(request)) as held:
        yield held


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_document(request: Request, held: HeldBody) -> dict[str, Any]:
    """Read a JSON body. InvalidArgument for another Content-Type: other sites' pages may post forms here."""
    if content_type(request) != JSON_TYPE:
        raise InvalidArgument.of("Content-Type", f"must be {JSON_TYPE}")
    return read_json(await read_body(request, held))


async def read_generation(request: Request, held: HeldBody) -> GenerationRequest:
    return GenerationRequest.read(await read_document(request, held))


async def read_edit(request: Request, held: HeldBody) -> GenerationRequest:
    """Read an edit: a form, or a JSON body with data URLs."""
    if content_type(request) == JSON_TYPE:
        return JsonEditRequest.read(await read_document(request, held))
    return EditRequest.read_form(await read_form(request, held))


@dataclass(frozen=True)
class EndedImages:
    """Hold the finished and the failed images of a call, in the order of their indexes."""

    completed: list[Completed] = field(default_factory=list)
    failed: list[ImageFailed] = field(default_factory=list)


@dataclass(frozen=True)
class FrontdoorCall:
    """Run an image call for its caller. The request id is stored in its `scope` once the frontdoor accepted it."""

    parts: EdgeParts
    offers: "FrontdoorOffers"
    token: str | None
    idempotency_key: str
    asked: ImageRequest
    partial_images: int
    scope: Scope

    async def events(self) -> AsyncGenerator[GenerateEvent, None]:
        """Yield accepted, routed, progress and completed; Internal STREAM_ENDED_EARLY without an image. Closing the
        generator cancels the request."""
        has_image = False
        async with self.parts.frontdoor.images(self.token) as client:
            interval = await self._preview_interval(client)

            def ask(key: str, deadline_ms: int | None) -> AsyncGenerator[GenerateEvent, None]:
                return client.generate(replace(self.asked, deadline_ms=deadline_ms), key, interval, omit_progress=True)

            async with aclosing(events_of(client, ask, self.idempotency_key, self.asked.deadline_ms)) as events:
                async for event in events:
                    if isinstance(event, Accepted):
                        self.scope[REQUEST_ID] = event.request_id
                    has_image |= isinstance(event, Completed)
                    yield event
        if not has_image:
            raise ended_early()

    async def _preview_interval(self, client: ImageClient) -> int:
        if not self.partial_images:
            return 0
        steps = self.asked.num_inference_steps or await self.offers.steps_of(self.asked.model, client)
        return preview_interval(steps, self.partial_images)

    async def urls(self, ended: EndedImages, origin: str) -> list[str]:
        """Return a URL for each image; URLs of this process begin with `origin`.

        If no URL is available yet, raise an error that leads to the finished images: Unavailable if the caller has a
        key, which a retry finds them by, else FailedPrecondition ADDRESS_PENDING."""
        try:
            async with self.parts.frontdoor.images(self.token) as client:
                return await urls_of(client, ended.completed, origin)
        except Unavailable as error:
            if self.idempotency_key:
                raise
            # A retry without a key would generate the finished image again.
            where = f"GET /v1/jobs/{self.scope[REQUEST_ID]}/result?{URL_FIELD}=url returns it once it is available"
            message = f"{URL_FIELD}: the image is finished, its URL is not available ({error.message}); {where}"
            raise FailedPrecondition("ADDRESS_PENDING", message) from error

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
        ended.completed.sort(key=lambda one: one.image_index)
        return ended


@dataclass(frozen=True)
class AcceptedRetries(RetryPolicy):
    """Retry like the SDK's clients, but only accepted requests: the caller repeats the others."""

    def most_tries(self, error: PentimentoError, *, accepted: bool, late: bool) -> int:
        return super().most_tries(error, accepted=accepted, late=late) if accepted else 1


RETRIES = AcceptedRetries()


def events_of(
    client: ImageClient, ask: StreamCall, idempotency_key: str = "", deadline_ms: int | None = None
) -> AsyncGenerator[GenerateEvent, None]:
    """Return the events of a call of `ask`, under the caller's key or none, across restarts of the frontdoor.

    A key costs the journal a lookup; an accepted request is found again by its id. A request that ended because the
    connection broke is made again under a new key. Closing the generator cancels the request."""
    ids: dict[str, str] = {}

    async def call(key: str, left_ms: int | None) -> AsyncGenerator[GenerateEvent, None]:
        asked = client.attach(ids[key]) if key in ids else ask(key if ids else idempotency_key, left_ms)
        async with aclosing(asked) as events:
            async for event in events:
                if isinstance(event, Accepted):
                    ids[key] = event.request_id
                yield event

    return retried_events(call, RETRIES, idempotency_key=idempotency_key, deadline_ms=deadline_ms)


class FrontdoorOffers:
    """Cache for `FRESH_S` what the frontdoor reports: its models' default steps, and that it serves images by URL."""

    def __init__(self, parts: EdgeParts) -> None:
        self._parts = parts
        self._steps: dict[str, int] = {}
        self._steps_until = self._urls_until = float("-inf")

    async def steps_of(self, model: str, client: ImageClient) -> int:
        """Return a model's default steps; without a known model the fewest of all models."""
        now = time.monotonic()
        if now > self._steps_until:
            self._steps = {one.name: one.default_steps for one in await client.list_models(LIST_TIMEOUT_S)}
            self._steps_until = now + FRESH_S
        return self._steps.get(model) or min(self._steps.values(), default=1)

    async def check_urls(self, token: str | None) -> None:
        """Raise FailedPrecondition URLS_OFF if images would have no working URL, before they are generated."""
        now = time.monotonic()
        if now < self._urls_until:
            return
        async with self._parts.frontdoor.images(token) as client:
            server = await client.result_url_server(CALL_TIMEOUT_S)
        if server is None:
            return
        if server is ResultUrlServer.NONE or (server is ResultUrlServer.EDGE and not self._parts.settings.files_url):
            whose = "deployment has no URLs" if server is ResultUrlServer.NONE else "edge has no store"
            violation = FieldViolation(URL_FIELD, f"must be b64_json: this {whose} of images")
            raise FailedPrecondition("URLS_OFF", f"{URL_FIELD}: {violation.description}", violations=(violation,))
        self._urls_until = now + FRESH_S


def preview_interval(steps: int, partial_images: int) -> int:
    """Return the steps between previews for a number of previews before the image; 0 for none."""
    if not partial_images:
        return 0
    return min(max(steps // (partial_images + 1), 1), MAX_INTERVAL_STEPS)


def origin_of(request: Request, parts: EdgeParts) -> str:
    """Return the origin of this process's URLs: the configured public one, else the one of this request."""
    return parts.settings.public_url.rstrip("/") or f"{request.url.scheme}://{request.headers.get('host', '')}"


async def urls_of(client: ImageClient, images: Iterable[Completed], origin: str) -> list[str]:
    """Return a URL for each image; URLs of this process begin with `origin`."""
    return [whole_url(await client.result_url(one.request_id), origin) for one in images]


def whole_url(result: ResultUrl, origin: str) -> str:
    """Return an absolute URL: a path of this process gets its origin."""
    return origin + result.url if result.url.startswith("/") else result.url
