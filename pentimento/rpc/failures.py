"""Build the answer to a failed call, and its log record."""

import logging
from typing import Any

import grpc

from pentimento.domain.errors import (
    DeadlineExceeded,
    Internal,
    PentimentoError,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from pentimento.rpc.context import REQUEST_ID, STATUS_DETAILS
from pentimento.rpc.errors import code_of, to_status, unexpected
from pentimento.telemetry.request_id import request_id

logger = logging.getLogger(__name__)

RETRY_AFTER_MS = 250


def explain(error: Exception, path: str) -> PentimentoError:
    """Return the error to answer with. Defects are logged with their traceback, and their text stays in the log."""
    if isinstance(error, ExceptionGroup):
        error = first_of(error)
    known = error if isinstance(error, PentimentoError) and not is_refusal_of_ourselves(error) else unexpected()
    if isinstance(known, Internal):
        fields = {"method": path, "reason": known.reason, "error_id": known.metadata.get("error_id", "")}
        logger.error("call failed", exc_info=error, extra=fields)
    elif logger.isEnabledFor(logging.DEBUG):
        logger.debug("call rejected", extra={"method": path, "code": code_of(known).name, "reason": known.reason})
    return known


def is_refusal_of_ourselves(error: PentimentoError) -> bool:
    """Return whether another process rejected our own token: the caller, with a valid token, would blame its own."""
    return isinstance(error, Unauthenticated | PermissionDenied) and isinstance(
        error.__cause__ or error.__context__, grpc.RpcError
    )


def first_of(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first error of a task group that failed with domain errors only; otherwise the group."""
    ours, others = group.split(PentimentoError)
    while isinstance(ours, ExceptionGroup) and others is None:
        first = ours.exceptions[0]
        if not isinstance(first, ExceptionGroup):
            return first
        ours = first
    return group


def answer_with(context: grpc.aio.ServicerContext[Any, Any], error: PentimentoError) -> None:
    """Let the call end with the error's status, its details, and the id for the logs, once its handler returns.
    `context.abort` would raise an exception that refers to itself: fifty objects of each rejected call would wait for
    the garbage collector."""
    status = to_status(error)
    context.set_code(code_of(error))
    context.set_details(status.message)
    context.set_trailing_metadata(((STATUS_DETAILS, status.SerializeToString()), (REQUEST_ID, request_id.get())))


def shutting_down() -> Unavailable:
    return Unavailable("SHUTTING_DOWN", "this server is stopping", retry_after_ms=RETRY_AFTER_MS)


def too_many_calls(message: str, wait_s: float = 0.0) -> ResourceExhausted:
    """Return the error for a call beyond a limit, which may be repeated after `wait_s` seconds."""
    return ResourceExhausted("TOO_MANY_CALLS", message, retry_after_ms=max(RETRY_AFTER_MS, round(wait_s * 1000)))


def too_many_messages() -> ResourceExhausted:
    return ResourceExhausted(
        "TOO_MANY_MESSAGES", "this server already receives as many messages as it may", retry_after_ms=RETRY_AFTER_MS
    )


def not_received() -> DeadlineExceeded:
    return DeadlineExceeded("REQUEST_NOT_RECEIVED", "the request message did not arrive in time")
