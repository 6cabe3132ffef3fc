"""The console's data: the deployment, images and their provenance, the suite's status, and the cache's entries.

Each call uses its caller's token; the called service decides about it.
"""

import gzip
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from grpc.aio import Channel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pentimento.clients.controller import ControllerClient
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.gateway import GatewayClient
from pentimento.clients.image import ImageClient
from pentimento.clients.suite_status import SuiteStatus, as_document, gathered
from pentimento.domain.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PentimentoError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from pentimento.domain.image_request import Completed
from pentimento.domain.jobs import RequestQuery, RequestState
from pentimento.domain.provenance_document import as_json
from services.edge.api.images import JSON_TYPE, held_body, read_document
from services.edge.caller_channels import CallerChannels
from services.edge.console.history import INTERVAL_S, sample_of
from services.edge.console.pages import takes_gzip
from services.edge.console.streams import (
    ExplainBody,
    PlaygroundBody,
    ReplayBody,
    StreamEndpoint,
    completed_document,
)
from services.edge.http.callers import token_of
from services.edge.parts import EdgeParts

T = TypeVar("T")
CALL_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 2.0
# Time between a page's own samples, if this process stores none.
UNKEPT_MS = 2000
DATA = "/console/data"
PRIVATE = {"Cache-Control": "no-store"}
MAX_DIGITS = 6
TIME_DIGITS = 15
# A higher level takes longer and saves little.
COMPRESSION = 5
FINISHED = RequestQuery(states=frozenset({RequestState.COMPLETED}))
MEDIA_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp"}


def data_routes(parts: EdgeParts) -> list[BaseRoute]:
    calls = ConsoleCalls(parts)
    return [
        Route(f"{DATA}/access", calls.access),
        Route(f"{DATA}/deployment", calls.deployment),
        Route(f"{DATA}/status", calls.status),
        Route(f"{DATA}/history", calls.history),
        Route(f"{DATA}/generate", StreamEndpoint(parts, PlaygroundBody), methods=["POST"]),
        Route(f"{DATA}/replay", StreamEndpoint(parts, ReplayBody), methods=["POST"]),
        Route(f"{DATA}/explain", calls.explain, methods=["POST"]),
        Route(f"{DATA}/requests", calls.requests),
        Route(f"{DATA}/requests/{{request_id}}", calls.provenance),
        Route(f"{DATA}/requests/{{request_id}}/image", calls.image),
    ]


class ConsoleCalls:
    """Handle the console's calls; handlers raise the errors of the catalogue."""

    def __init__(self, parts: EdgeParts) -> None:
        self._parts = parts

    async def access(self, request: Request) -> Response:
        """Return whether callers need a token, and whether this caller may generate images and read the status."""
        token = token_of(request)
        tokens = isinstance(await self._refusal(None, list_models), Unauthenticated)
        images = not isinstance(await self._refusal(token, list_models), PermissionDenied)
        suite = await self._refusal(token, suite_totals) is None
        return document({"tokens": tokens, "images": images, "suite": suite and self._parts.controller is not None})

    async def _refusal(self, token: str | None, ask: Callable[[Channel], Awaitable[object]]) -> PentimentoError | None:
        """Return what the frontdoor refuses a caller's question with; None where it does not, or is away."""
        try:
            async with self._parts.frontdoor.channel(token) as channel:
                await ask(channel)
        except (Unauthenticated, PermissionDenied) as error:
            return error
        except Unavailable:
            pass
        return None

    async def deployment(self, request: Request) -> Response:
        """Return the models, LoRAs, ControlNets and parts of the deployment."""
        async with self._parts.frontdoor.images(token_of(request)) as client:
            models, adapters = await client.list_models(CALL_TIMEOUT_S), await client.list_adapters(CALL_TIMEOUT_S)
            listing = False
            with suppress(FailedPrecondition):
                await client.list_requests(replace(FINISHED, page_size=1), CALL_TIMEOUT_S)
                listing = True
        features = {
            "cache": self._parts.gateway is not None,
            "controller": self._parts.controller is not None,
            "listing": listing,
            "trace_url": self._parts.settings.trace_url,
        }
        return document({"models": as_json(models), "adapters": as_json(adapters), "features": features})

    async def status(self, request: Request) -> Response:
        """Return the suite's status, if the caller may read it from each service."""
        return document(as_document(await suite_status(self._parts, token_of(request))))

    async def history(self, request: Request) -> Response:
        """Return the samples after the time `after`, if the caller may read the suite's status."""
        after_ms, token = number_of(request, "after", TIME_DIGITS), token_of(request)
        history = self._parts.history
        if history.reads:
            async with self._parts.frontdoor.channel(token) as channel:
                await FrontdoorClient(channel).status(STATUS_TIMEOUT_S)
            interval_ms, samples = round(INTERVAL_S * 1000), history.ring.after(after_ms)
        else:
            # This process cannot sample by itself.
            sample = sample_of(await suite_status(self._parts, token))
            interval_ms, samples = UNKEPT_MS, json.dumps([sample] if sample else []).encode()
        body = b'{"interval_ms":%d,"samples":%s}' % (interval_ms, samples)
        headers = PRIVATE
        if takes_gzip(request):
            body = gzip.compress(body, COMPRESSION, mtime=0)
            headers = {**PRIVATE, "Content-Encoding": "gzip"}
        return Response(body, media_type=JSON_TYPE, headers=headers)

    async def explain(self, request: Request) -> Response:
        """Return the route that a request would get now, and the cache's entries near it."""
        async with held_body(self._parts, request) as held:
            body = ExplainBody.read(await read_document(request, held))
        async with self._parts.frontdoor.images(token_of(request)) as client:
            explained = await client.explain(body.to_request(), CALL_TIMEOUT_S, neighbour_count=body.neighbour_count)
        return document(as_json(explained))

    async def requests(self, request: Request) -> Response:
        """List the caller's finished images, newest first."""
        page_token = request.query_params.get("page_token", "")
        query = replace(FINISHED, page_size=number_of(request, "page_size"), page_token=page_token)
        page = await self._parts.frontdoor.page(token_of(request), query, CALL_TIMEOUT_S)
        return document(as_json(page))

    async def provenance(self, request: Request) -> Response:
        return document(completed_document(await self._completed(request, omit_image=True)))

    async def image(self, request: Request) -> Response:
        completed = await self._completed(request, omit_image=False)
        return Response(completed.image, media_type=MEDIA_TYPES[completed.format.value], headers=PRIVATE)

    async def _completed(self, request: Request, *, omit_image: bool) -> Completed:
        """Return a finished image. FailedPrecondition NOT_COMPLETED before that, NotFound if the request failed."""
        async with self._parts.frontdoor.images(token_of(request)) as client:
            status = await client.get_request(request.path_params["request_id"], omit_image, CALL_TIMEOUT_S)
        if status.completed is not None:
            return status.completed
        if status.state.terminal:
            raise NotFound(status.error_reason or "UNKNOWN_REQUEST", "this request ended without an image")
        raise FailedPrecondition("NOT_COMPLETED", "the image is not finished yet")


def number_of(request: Request, name: str, max_digits: int = MAX_DIGITS) -> int:
    """Return a number of the query, 0 if absent. InvalidArgument for anything else."""
    given = request.query_params.get(name, "0")
    if not (given.isascii() and given.isdecimal()) or len(given) > max_digits:
        raise InvalidArgument.of(name, "must be a number")
    return int(given)


async def list_models(channel: Channel) -> None:
    await ImageClient(channel).list_models(CALL_TIMEOUT_S)


async def suite_totals(channel: Channel) -> None:
    await FrontdoorClient(channel).status(CALL_TIMEOUT_S)


def document(values: Any) -> Response:
    """Return a JSON response that is never cached."""
    return JSONResponse(values, headers=PRIVATE)


async def suite_status(parts: EdgeParts, token: str | None) -> SuiteStatus:
    """Return the status; `unanswered` names the services that do not answer. PermissionDenied or Unauthenticated if the
    caller may not read it."""
    refused: list[PermissionDenied | Unauthenticated] = []

    async def ask(channels: CallerChannels | None, question: Callable[[Channel], Awaitable[T]]) -> T | None:
        if channels is None:
            return None
        try:
            async with channels.channel(token) as channel:
                return await question(channel)
        except (PermissionDenied, Unauthenticated) as error:
            refused.append(error)
            raise

    status = await gathered(
        ask(parts.controller, lambda channel: ControllerClient(channel).fleet(STATUS_TIMEOUT_S)),
        {
            name: ask(channels, lambda channel: FrontdoorClient(channel).status(STATUS_TIMEOUT_S))
            for name, channels in parts.frontdoor.cells.items()
        },
        ask(parts.gateway, lambda channel: GatewayClient(channel).statistics(STATUS_TIMEOUT_S)),
    )
    if refused:
        raise refused[0]
    return status
