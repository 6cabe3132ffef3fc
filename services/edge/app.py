"""The edge's ASGI application: routes, and for every request the check of its origin, errors and metrics."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, Router

from pentimento.domain.errors import Cancelled
from pentimento.rpc.failures import shutting_down
from pentimento.stores.objects.signed_paths import FILES_PATH
from services.edge.api_document import document_routes
from services.edge.console import console_routes
from services.edge.files import file_routes
from services.edge.health import health_routes
from services.edge.http.errors import as_known, error_response
from services.edge.http.origins import OriginRule, origin_rule
from services.edge.images import image_routes
from services.edge.images.events import error_event
from services.edge.images.image_call import API_NAMES
from services.edge.images.streaming import REQUEST_ID, STREAM_HEADERS
from services.edge.jobs import job_routes
from services.edge.metrics import CLIENTS_LEFT, HTTP_REQUESTS, HTTP_SECONDS
from services.edge.model_list import model_routes
from services.edge.parts import EdgeParts

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
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
    routes = [*api_routes(parts), *console_routes(parts)]
    return EdgeApp(routes, origin_rule(http.http_listen, http.allowed_hosts, http.allowed_origins))


def api_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the routes of the API."""
    files = file_routes(parts)
    api = [*health_routes(parts), *document_routes(bool(files)), *model_routes(parts), *image_routes(parts)]
    return [*api, *job_routes(parts), *files]


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
    """Return the answer for an error."""
    if isinstance(error, HTTPException):
        document = {"message": error.detail, "type": "invalid_request_error", "param": None, "code": "WRONG_METHOD"}
        return JSONResponse({"error": document}, error.status_code, error.headers)
    known = as_known(error)
    if isinstance(known, Cancelled):
        CLIENTS_LEFT.inc()
    return error_response(known, API_NAMES)


async def unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer an unknown path with 404."""
    document = {"message": "there is nothing at this path", "type": "not_found_error", "param": None}
    await JSONResponse({"error": {**document, "code": "UNKNOWN_PATH"}}, 404)(scope, receive, send)


def count(scope: Scope, status: int, seconds: float) -> None:
    """Count a request by its route; its path, which the client chooses, must not become a label."""
    route = scope.get("route")
    name = route.path if isinstance(route, Route) else UNKNOWN_ROUTE
    HTTP_REQUESTS.labels(name, str(status)).inc()
    HTTP_SECONDS.labels(name).observe(seconds)
