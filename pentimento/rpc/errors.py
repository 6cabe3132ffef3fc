"""Convert domain errors to google.rpc.Status and back; build the answer to a failed call, and its log record.

    error                  gRPC status            details after ErrorInfo(reason, "pentimento", metadata)
    InvalidArgument        INVALID_ARGUMENT       BadRequest with a violation for each field
    UnsafeContent          INVALID_ARGUMENT       SafetyVerdict
    NotFound               NOT_FOUND              BadRequest if a field names the missing thing
    Unauthenticated        UNAUTHENTICATED
    PermissionDenied       PERMISSION_DENIED
    ResourceExhausted      RESOURCE_EXHAUSTED     RetryInfo with the retry time, if known
    FailedPrecondition     FAILED_PRECONDITION
    Aborted                ABORTED
    DeadlineExceeded       DEADLINE_EXCEEDED
    Cancelled              CANCELLED
    Unavailable            UNAVAILABLE            RetryInfo with the retry time, if known
    Internal               INTERNAL
    anything else          INTERNAL               reason UNEXPECTED and an error id, without the cause

Subclasses travel as the nearest class above with their own reason. Foreign statuses (a proxy's, a lost connection's)
come back as the error of their code, with a sentence of this catalogue instead of the transport's internals.
"""

import logging
import secrets
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from pentimento.api.generation.v1 import generation_pb2
from pentimento.domain import errors
from pentimento.domain.errors import (
    DeadlineExceeded,
    FieldViolation,
    Internal,
    PentimentoError,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    UnsafeContent,
)
from pentimento.domain.reasons import Reason
from pentimento.domain.safety import SafetyVerdict
from pentimento.rpc.context import REQUEST_ID, STATUS_DETAILS
from pentimento.telemetry.tracing import request_id

logger = logging.getLogger(__name__)


ERROR_DOMAIN = "pentimento"
# A status travels in headers, and HTTP/2 peers accept 8 KiB: percent-encoded and in base64 all this stays below.
MAX_MESSAGE_BYTES = 512
MAX_TEXT_BYTES = 192
MAX_NAME_BYTES = 96
MAX_ITEMS = 6

CODE_OF: dict[type[PentimentoError], grpc.StatusCode] = {
    kind: code for code in grpc.StatusCode for kind in PentimentoError.__subclasses__() if kind.code == code.value[0]
}
CLASS_OF: dict[grpc.StatusCode, type[PentimentoError]] = {
    **{code: cls for cls, code in CODE_OF.items()},
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidArgument,
    grpc.StatusCode.ALREADY_EXISTS: errors.FailedPrecondition,
    grpc.StatusCode.UNIMPLEMENTED: errors.FailedPrecondition,
    grpc.StatusCode.UNKNOWN: errors.Internal,
    grpc.StatusCode.DATA_LOSS: errors.Internal,
}
# For foreign statuses.
FOREIGN_MESSAGE = {
    grpc.StatusCode.UNAVAILABLE: "the server cannot be reached",
    grpc.StatusCode.DEADLINE_EXCEEDED: "the deadline passed before the answer came",
    grpc.StatusCode.UNIMPLEMENTED: "the server does not know this call",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "the server or the connection refused more",
}


def code_of(error: PentimentoError) -> grpc.StatusCode:
    """Return the status code of the nearest class of the catalogue."""
    return next((CODE_OF[cls] for cls in type(error).__mro__ if cls in CODE_OF), grpc.StatusCode.INTERNAL)


def to_status(error: PentimentoError) -> status_pb2.Status:
    """Return the error as google.rpc.Status, cut to fit into headers."""
    status = status_pb2.Status(code=code_of(error).value[0], message=cut(error.message, MAX_MESSAGE_BYTES))
    metadata = {cut(key, MAX_NAME_BYTES): cut(value) for key, value in list(error.metadata.items())[:MAX_ITEMS]}
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(reason=cut(error.reason, MAX_NAME_BYTES), domain=ERROR_DOMAIN, metadata=metadata)
    )
    if error.violations:
        request = error_details_pb2.BadRequest()
        for one in error.violations[:MAX_ITEMS]:
            request.field_violations.add(field=cut(one.field, MAX_NAME_BYTES), description=cut(one.description))
        status.details.add().Pack(request)
    if error.retry_after_ms is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(error.retry_after_ms)
        status.details.add().Pack(retry)
    if isinstance(error, UnsafeContent):
        given = error.verdict
        verdict = generation_pb2.SafetyVerdict(probability=given.probability, limit=given.limit)
        verdict.label, verdict.classifier_digest = cut(given.label), cut(given.classifier_digest)
        status.details.add().Pack(verdict)
    return status


def cut(text: str, size_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return at most `size_bytes` of UTF-8, marked at the end if cut, without characters that UTF-8 cannot carry."""
    whole = text[: size_bytes + 1].encode(errors="replace")
    if len(whole) <= size_bytes:
        return whole.decode()
    ellipsis = "…".encode()
    return whole[: size_bytes - len(ellipsis)].decode(errors="ignore") + "…"


def from_status(status: status_pb2.Status) -> PentimentoError | None:
    """Return the error that `to_status` wrote; None for a status of another domain."""
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    verdict, has_retry, has_verdict = generation_pb2.SafetyVerdict(), False, False
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
        has_retry = detail.Unpack(retry) or has_retry
        has_verdict = detail.Unpack(verdict) or has_verdict
    if info.domain != ERROR_DOMAIN:
        return None
    if has_verdict:
        found = SafetyVerdict(verdict.probability, verdict.limit, verdict.label, verdict.classifier_digest)
        return UnsafeContent(info.reason, status.message, found)
    code = next((code for code in CLASS_OF if code.value[0] == status.code), grpc.StatusCode.INTERNAL)
    return CLASS_OF[code](
        info.reason,
        status.message,
        violations=tuple(FieldViolation(one.field, one.description) for one in bad.field_violations),
        retry_after_ms=retry.retry_delay.ToMilliseconds() if has_retry else None,
        metadata=dict(info.metadata),
    )


def error_from_rpc(error: grpc.aio.AioRpcError) -> PentimentoError:
    """Return the domain error of a failed call, also for a foreign status. Raise it `from error`."""
    trailing = error.trailing_metadata()
    packed = trailing.get(STATUS_DETAILS) if trailing is not None else None
    if isinstance(packed, bytes):
        try:
            ours = from_status(status_pb2.Status.FromString(packed))
        except DecodeError:
            ours = None
        if ours is not None:
            return ours
    return foreign(error.code(), error.details() or "")


def foreign(code: grpc.StatusCode, details: str) -> PentimentoError:
    """Return the error of a foreign status.

    A caller never receives its own cancel as a status. The server's cancel is a reset stream: of calls that were not
    yet taken when a server stopped, or that a proxy cut off. They were not answered, and may be repeated.
    """
    if code is grpc.StatusCode.CANCELLED:
        code = grpc.StatusCode.UNAVAILABLE
    if code is grpc.StatusCode.UNAVAILABLE:
        logger.debug("unreachable", extra={"details": details})
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        # gRPC's rejection gives both sizes as "(size vs. limit)"; the rest of its text is dropped.
        size, _, limit = details.rpartition("(")[2].rstrip(")").partition(" vs. ")
        return message_too_large(size, limit)
    message = FOREIGN_MESSAGE.get(code, f"the call failed with {code.name}")
    return CLASS_OF.get(code, errors.Internal)(code.name, message)


def message_too_large(size: str, limit: str) -> errors.ResourceExhausted:
    """Return the error of a message that is too large. `size` and `limit` in bytes, as digits; other text is
    dropped."""
    known = {"size_bytes": size, "limit_bytes": limit} if size.isdecimal() and limit.isdecimal() else {}
    detail = f": {size} bytes are more than the limit of {limit} bytes" if known else ""
    return errors.ResourceExhausted(Reason.MESSAGE_TOO_LARGE, f"the message is too large{detail}", metadata=known)


def unexpected() -> errors.Internal:
    """Return the error for an exception outside the catalogue: callers receive only an id, which the log also has."""
    error_id = secrets.token_hex(8)
    return errors.Internal("UNEXPECTED", f"internal error {error_id}", metadata={"error_id": error_id})


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
