"""The routes of the edge, and what is done for every request: origins, errors, counting."""

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
from services.edge.images.asking import API_NAMES
from services.edge.images.events import error_event
from services.edge.images.painting import REQUEST_ID, STREAM_HEADERS
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
# Answers are the caller's own, and say themselves what they are.
SAFE_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
# OpenAI's clients send headers of their own (X-Stainless-…), others for each version; `*` does not stand for the token.
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, *",
    "Access-Control-Max-Age": "600",
}
VARIES = (b"vary", b"Origin")
# What scripts of an allowed page may read besides what browsers always show them.
EXPOSED_HEADERS = b"Location, Retry-After, X-Request-Id, X-Should-Retry"


def edge_app(parts: EdgeParts) -> "EdgeApp":
    """Return the ASGI application: API first, then the console's pages and data."""
    http = parts.settings.http
    routes = [*api_routes(parts), *console_routes(parts)]
    return EdgeApp(routes, origin_rule(http.http_listen, http.allowed_hosts, http.allowed_origins))


def api_routes(parts: EdgeParts) -> list[BaseRoute]:
    """Return the routes of the API."""
    files = file_routes(parts)
    api = [*health_routes(parts), *document_routes(bool(files)), *model_routes(parts), *image_routes(parts)]
    return [*api, *job_routes(parts), *files]


class EdgeApp:
    """An ASGI application over routes whose handlers raise the errors of the catalogue."""

    def __init__(self, routes: list[BaseRoute], origins: OriginRule) -> None:
        self._router = Router(routes, redirect_slashes=False, default=unknown_route)
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = time.monotonic()
        without_slash(scope)
        # Starlette's routes then raise what is wrong with a request instead of answering it in a shape of their own.
        scope["app"] = self
        answer = EdgeAnswer(send, scope)
        try:
            await self._route(scope, receive, answer)
        except Exception as error:
            response = failure(error)
            if not answer.status:
                await response(scope, receive, answer)
            elif response.status_code != CLIENT_CLOSED:
                # Half an answer is out: that the connection ends here is all that can still be told.
                raise
        except asyncio.CancelledError:
            # The time of the drain is over: another process, or the next, has what has not begun.
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
        # Who has a signed address may read by it wherever it stands; nothing else of a request counts there.
        if not scope["path"].startswith(FILES_PATH):
            self._origins.check(request)
        if self._origins.origins:
            # Of every answer: a browser keeps the one that it got for an element, which says nothing of origins, and
            # would take it for what a script of an allowed page may read.
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
    """Take `/v1/models/` for `/v1/models`, as clients may write it; changes the scope. Keys of files may end so."""
    path: str = scope["path"]
    if path.startswith(API_PATH) and path.endswith("/") and not path.startswith(FILES_PATH):
        scope["path"] = path[:-1]


class EdgeAnswer:
    """A `send` that adds the headers of every answer and notes its status, 0 before it begins, and whether it is a
    stream of events that has begun."""

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
    """Return the answer to a request that failed."""
    if isinstance(error, HTTPException):
        document = {"message": error.detail, "type": "invalid_request_error", "param": None, "code": "WRONG_METHOD"}
        return JSONResponse({"error": document}, error.status_code, error.headers)
    known = as_known(error)
    if isinstance(known, Cancelled):
        CLIENTS_LEFT.inc()
    return error_response(known, API_NAMES)


async def unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a path that is none of ours."""
    document = {"message": "there is nothing at this path", "type": "not_found_error", "param": None}
    await JSONResponse({"error": {**document, "code": "UNKNOWN_PATH"}}, 404)(scope, receive, send)


def count(scope: Scope, status: int, seconds: float) -> None:
    """Count a request by its route, never by its path: what a client asks for is no label."""
    route = scope.get("route")
    name = route.path if isinstance(route, Route) else UNKNOWN_ROUTE
    HTTP_REQUESTS.labels(name, str(status)).inc()
    HTTP_SECONDS.labels(name).observe(seconds)
