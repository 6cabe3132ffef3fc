"""Answers over HTTP: errors in OpenAI's format, JSON with bytes in it, entity tags, and clients that leave.

{"error": {"message": …, "type": …, "param": the field or null, "code": the reason}}
"""

import asyncio
import base64
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, NotRequired

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from pentimento.domain import errors
from pentimento.domain.errors import Cancelled, PentimentoError
from pentimento.domain.provenance_document import as_json
from pentimento.domain.reasons import Reason
from pentimento.rpc.errors import unexpected

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
STATUS_OF: dict[type[PentimentoError], tuple[int, str]] = {
    errors.InvalidArgument: (400, "invalid_request_error"),
    errors.Unauthenticated: (401, "authentication_error"),
    errors.PermissionDenied: (403, "permission_error"),
    errors.NotFound: (404, "not_found_error"),
    errors.FailedPrecondition: (409, "conflict_error"),
    errors.Aborted: (409, "conflict_error"),
    errors.ResourceExhausted: (429, "rate_limit_error"),
    errors.Cancelled: (499, "request_cancelled"),
    errors.Internal: (500, "server_error"),
    errors.Unavailable: (503, "server_error"),
    errors.DeadlineExceeded: (504, "timeout_error"),
}
TOO_LARGE = (413, "invalid_request_error")
# For errors that may be retried but have no time to wait.
DEFAULT_RETRY_AFTER_S = 1
IF_NONE_MATCH = "if-none-match"
TOKEN_HELP = (
    "send `Authorization: Bearer <token>` (`api_key` in OpenAI's clients, OPENAI_API_KEY in their environment); an"
    " operator creates one with `pentimento token new` or `pentimento tenant key create`"
)


class ErrorBodyDocument(TypedDict):
    message: str
    type: str
    param: str | None
    code: str
    safety: NotRequired[dict[str, Any]]


class ErrorDocument(TypedDict):
    error: ErrorBodyDocument


def status_and_type(error: PentimentoError) -> tuple[int, str]:
    """Return HTTP status and type of an error, by its nearest class of the catalogue."""
    if error.reason == Reason.MESSAGE_TOO_LARGE:
        return TOO_LARGE
    found = (STATUS_OF[cls] for cls in type(error).__mro__ if cls in STATUS_OF)
    return next(found, STATUS_OF[errors.Internal])


def message_of(error: PentimentoError) -> str:
    """Return an error's message; for a missing or unknown token with the way to get and send one."""
    if not isinstance(error, errors.Unauthenticated):
        return error.message
    first = "this suite needs a token" if error.reason == Reason.TOKEN_REQUIRED else error.message
    return f"{first}: {TOKEN_HELP}"


def error_document(error: PentimentoError, names: dict[str, str] | None = None) -> ErrorDocument:
    """Return the body of an error. `names`: fields of this API by fields of the contract."""
    param = error.violations[0].field if error.violations else None
    message = message_of(error)
    if param is not None and names and param in names:
        message = message.replace(param, names[param], 1)
        param = names[param]
    kind = status_and_type(error)[1]
    document: ErrorDocument = {"error": {"message": message, "type": kind, "param": param, "code": error.reason}}
    if isinstance(error, errors.UnsafeContent):
        document["error"]["safety"] = as_json(error.verdict)
    return document


def error_headers(error: PentimentoError) -> dict[str, str]:
    """Return the headers that say whether and when the request may be retried."""
    status, _ = status_and_type(error)
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    # It exceeds its tenant's quota by itself; other requests have a time to wait.
    never_fits = error.reason == Reason.TENANT_QUOTA and error.retry_after_ms is None
    # A retry after a missed deadline would run again and be late again.
    if isinstance(error, errors.FailedPrecondition | errors.DeadlineExceeded) or never_fits:
        headers["x-should-retry"] = "false"
    elif status in (429, 503):
        wait_s = DEFAULT_RETRY_AFTER_S if error.retry_after_ms is None else math.ceil(error.retry_after_ms / 1000)
        headers["Retry-After"] = str(max(wait_s, 1))
    return headers


def error_response(error: PentimentoError, names: dict[str, str] | None = None) -> Response:
    """Return the answer of an error."""
    status, _ = status_and_type(error)
    return JSONResponse(error_document(error, names), status, error_headers(error))


def as_known(error: Exception) -> PentimentoError:
    """Return an error of the catalogue unchanged; for any other the caller gets only an id, which the log has too."""
    if isinstance(error, PentimentoError):
        return error
    known = unexpected()
    logger.error("unexpected error", exc_info=error, extra={"error_id": known.metadata["error_id"]})
    return known


@dataclass(frozen=True)
class Base64:
    """Bytes that a document contains as a base64 text."""

    data: bytes = field(repr=False)


def document_bytes(document: Any, *, ensure_ascii: bool = False) -> bytes:
    """Return a document as JSON in UTF-8.

    Base64 texts need no escapes and are inserted after the encoding: scanning their characters took as long as all
    other work for a large image."""
    texts: list[bytes] = []
    # A random mark, which no document can contain.
    mark = token_hex(16)

    def marked(value: object) -> str:
        if not isinstance(value, Base64):
            raise TypeError(f"{type(value).__name__} is not a JSON value")
        texts.append(base64.b64encode(value.data))
        return mark

    written = json.dumps(
        document, default=marked, ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":")
    ).encode()
    parts = written.split(mark.encode())
    return b"".join(part for pair in zip(parts, [*texts, b""], strict=True) for part in pair)


class DocumentResponse(JSONResponse):
    """A response with a document that may contain `Base64`."""

    def render(self, content: Any) -> bytes:
        """Encode the body."""
        return document_bytes(content)


def client_has(request: HTTPConnection, tag: str) -> bool:
    """Return whether If-None-Match has a tag (in quotes), also as a weak one."""
    return any(tag in line for line in request.headers.getlist(IF_NONE_MATCH))


def matches_any(request: HTTPConnection) -> bool:
    """Return whether If-None-Match is `*`, which matches any existing answer (RFC 9110, 13.1.2)."""
    return any(line.strip() == "*" for line in request.headers.getlist(IF_NONE_MATCH))


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block when the client disconnects, and raise Cancelled CLIENT_LEFT. The request's body must have been
    read."""
    task = asyncio.current_task()
    assert task is not None
    watch = asyncio.ensure_future(disconnected(receive))
    inside, left = True, False

    def on_left(_: object) -> None:
        nonlocal left
        if inside and not watch.cancelled():
            left = True
            task.cancel()

    watch.add_done_callback(on_left)
    try:
        yield
    except asyncio.CancelledError:
        if left and not task.uncancel():
            raise Cancelled("CLIENT_LEFT", "the client disconnected before the answer") from None
        raise
    finally:
        inside = False
        watch.cancel()


async def disconnected(receive: Receive) -> None:
    """Return once the connection is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
