"""The edge's ASGI application: routes, and for every request the check of its origin, errors and metrics."""

import asyncio
import time

from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, Router

from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.domain.errors import Cancelled, NotFound
from pentimento.rpc.errors import shutting_down
from pentimento.stores.objects.store import FILES_PATH
from pentimento.telemetry.tracing import TRACEPARENT, TRACESTATE, begin_call, exemplar
from services.edge.api.answers import ModelDocument, model_documents
from services.edge.api.bodies import API_NAMES
from services.edge.api.document import document_routes
from services.edge.api.events import STREAM_HEADERS, error_event
from services.edge.api.images import REQUEST_ID, image_routes
from services.edge.api.jobs import job_routes
from services.edge.console.data import data_routes
from services.edge.console.pages import page_routes
from services.edge.files import file_routes
from services.edge.http.answers import Message, Receive, Scope, Send, as_known, error_response
from services.edge.http.callers import OriginRule, origin_rule, token_of
from services.edge.metrics import CLIENTS_LEFT, HTTP_REQUESTS, HTTP_SECONDS
from services.edge.parts import EdgeParts

CALL_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 5.0
UNKNOWN_ROUTE = "unknown"
API_PATH = "/v1/"
CLIENT_CLOSED = 499
# Browsers must not guess an answer's type, nor show it in pages of other origins.
SAFE_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
# OpenAI's clients send further headers (X-Stainless-…) that change with their version. `*` excludes Authorization.
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, *",
    "Access-Control-Max-Age": "600",
}
VARIES = (b"vary", b"Origin")
# Headers that scripts of an allowed page may read, in addition to the ones that browsers always show.
EXPOSED_HEADERS = b"Location, Retry-After, X-Request-Id, X-Should-Retry"


def edge_app(parts: EdgeParts) -> "EdgeApp":
    """Return the ASGI application: the API first, then the console."""
    http = parts.settings.http
    routes = [*api_routes(parts), *page_routes(), *data_routes(parts)]
    return EdgeApp(routes, origin_rule(http.http_listen, http.allowed_hosts, http.allowed_origins))


def api_routes(parts: EdgeParts) -> list[BaseRoute]:
    files = file_routes(parts)
    api = [*health_routes(parts), *document_routes(bool(files)), *model_routes(parts), *image_routes(parts)]
    return [*api, *job_routes(parts), *files]


def health_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the routes for load balancers and Prometheus."""

    async def health(request: Request) -> Response:
        """Answer 200, independent of the suite."""
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        """Answer 200 if clients should send requests here, else 503."""
        why_not = await parts.readiness.why_not()
        if why_not is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", **({"reason": why_not} if why_not else {})}, 503)

    async def metrics(request: Request) -> Response:
        """Return this process's metrics, if the caller may read the frontdoor's status."""
        async with parts.frontdoor.channel(token_of(request)) as channel:
            await FrontdoorClient(channel).status(STATUS_TIMEOUT_S)
        # Only OpenMetrics carries exemplars.
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(REGISTRY), media_type=media_type)

    return [Route("/health", health), Route("/ready", ready), Route("/metrics", metrics)]


def model_routes(parts: EdgeParts) -> list[BaseRoute]:
    async def models_of(request: Request) -> dict[str, ModelDocument]:
        async with parts.frontdoor.images(token_of(request)) as client:
            served = await client.list_models(CALL_TIMEOUT_S)
        return model_documents(served, parts.model_aliases)

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": list((await models_of(request)).values())})

    async def model(request: Request) -> Response:
        found = (await models_of(request)).get(request.path_params["model"])
        if found is None:
            raise NotFound.of("UNKNOWN_MODEL", "model", "there is no such model")
        return JSONResponse(found)

    return [Route("/v1/models", models), Route("/v1/models/{model}", model)]


class EdgeApp:
    """Serve routes as an ASGI application; handlers raise the errors of the catalogue."""

    def __init__(self, routes: list[BaseRoute], origins: OriginRule) -> None:
        self._router = Router(routes, redirect_slashes=False, default=unknown_route)
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = time.monotonic()
        without_slash(scope)
        span = begin_call("HTTP", carried(scope), begins_trace=asks_for_work(scope))
        # With an app in the scope, Starlette's routes raise HTTPException instead of answering in their own format.
        scope["app"] = self
        answer = EdgeAnswer(send, scope)
        try:
            await self._route(scope, receive, answer)
        except Exception as error:
            response = failure(error)
            if not answer.status:
                await response(scope, receive, answer)
            elif response.status_code != CLIENT_CLOSED:
                # The answer has begun: closing the connection is the only way left to report the error.
                raise
        except asyncio.CancelledError:
            # The drain's time is over; the client sends requests without an answer to another process.
            if answer.is_of_events:
                await answer({"type": "http.response.body", "body": error_event(shutting_down()), "more_body": False})
            elif answer.status:
                raise
            else:
                await failure(shutting_down())(scope, receive, answer)
        finally:
            count(scope, answer.status, time.monotonic() - started)
            if span is not None:
                span.end(str(answer.status), f"{scope['method']} {route_of(scope)}")

    async def _route(self, scope: Scope, receive: Receive, answer: "EdgeAnswer") -> None:
        request = Request(scope)
        # A signed URL may be used in any page; the signature alone decides.
        if not scope["path"].startswith(FILES_PATH):
            self._origins.check(request)
        if self._origins.origins:
            # On every answer: a browser caches an image loaded without Origin, and would otherwise use it for a
            # script's request, which needs the headers below.
            answer.headers.append(VARIES)
        origin = request.headers.get("origin")
        if origin is not None and self._origins.allows(origin):
            answer.headers.append((b"access-control-allow-origin", origin.encode()))
            answer.headers.append((b"access-control-expose-headers", EXPOSED_HEADERS))
            if request.method == "OPTIONS":
                await Response(status_code=204, headers=PREFLIGHT)(scope, receive, answer)
                return
        await self._router(scope, receive, answer)


def without_slash(scope: Scope) -> None:
    """Remove the trailing slash of an API path, which some clients send; keys of files may end with one."""
    path: str = scope["path"]
    if path.startswith(API_PATH) and path.endswith("/") and not path.startswith(FILES_PATH):
        scope["path"] = path[:-1]


class EdgeAnswer:
    """A `send` that adds the headers of every answer.

    It records the answer's status (0 before it begins), and whether the answer is a stream of events."""

    def __init__(self, send: Send, scope: Scope) -> None:
        self._send = send
        self._scope = scope
        self.status = 0
        self.is_of_events = False
        self.headers: list[tuple[bytes, bytes]] = list(SAFE_HEADERS)

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if (request_id := self._scope.get(REQUEST_ID)) is not None:
                self.headers.append((b"x-request-id", request_id.encode()))
            given = list(message.get("headers", ()))
            said = {name.lower() for name, _ in given}
            self.is_of_events = STREAM_HEADERS[0] in given
            message["headers"] = [*given, *(one for one in self.headers if one == VARIES or one[0] not in said)]
        await self._send(message)


def failure(error: Exception) -> Response:
    if isinstance(error, HTTPException):
        document = {"message": error.detail, "type": "invalid_request_error", "param": None, "code": "WRONG_METHOD"}
        return JSONResponse({"error": document}, error.status_code, error.headers)
    known = as_known(error)
    if isinstance(known, Cancelled):
        CLIENTS_LEFT.inc()
    return error_response(known, API_NAMES)


def asks_for_work(scope: Scope) -> bool:
    """Return whether the request begins a trace where its client has none: a call for images or a job."""
    return bool(scope["method"] == "POST" and scope["path"].startswith(API_PATH))


def carried(scope: Scope) -> dict[str, str]:
    """Return the W3C headers of the client's trace, without repeated ones."""
    found = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    names = [name for name, _ in found]
    return {name: value for name, value in found if name in (TRACEPARENT, TRACESTATE) and names.count(name) == 1}


async def unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound("UNKNOWN_PATH", "there is nothing at this path")


def route_of(scope: Scope) -> str:
    """Return the path of the request's route, with its parameters' names."""
    route = scope.get("route")
    return route.path if isinstance(route, Route) else UNKNOWN_ROUTE


def count(scope: Scope, status: int, seconds: float) -> None:
    """Count a request by its route; its path, which the client chooses, must not become a label."""
    name = route_of(scope)
    HTTP_REQUESTS.labels(name, str(status)).inc()
    HTTP_SECONDS.labels(name).observe(seconds, exemplar())
