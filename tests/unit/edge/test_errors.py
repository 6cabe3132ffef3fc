"""Errors of the catalogue as HTTP answers in OpenAI's shape."""

import json

import grpc
from grpc.aio import AioRpcError, Metadata

from pentimento.domain import errors
from pentimento.domain.errors import PentimentoError
from pentimento.rpc.context import STATUS_DETAILS
from pentimento.rpc.errors import code_of, error_from_rpc, to_status
from services.edge.http.answers import STATUS_OF, as_known, error_response

RETRY_AFTER_1, NO_RETRY = {"retry-after": "1"}, {"x-should-retry": "false"}
STATUSES: tuple[tuple[PentimentoError, int, dict[str, str]], ...] = (
    (errors.InvalidArgument("A", "a"), 400, {}),
    (errors.Unauthenticated("A", "a"), 401, {"www-authenticate": "Bearer"}),
    (errors.PermissionDenied("A", "a"), 403, {}),
    (errors.NotFound("A", "a"), 404, {}),
    (errors.FailedPrecondition("A", "a"), 409, NO_RETRY),
    (errors.Aborted("A", "a"), 409, {}),
    (errors.ResourceExhausted("A", "a"), 429, RETRY_AFTER_1),
    (errors.ResourceExhausted("A", "a", retry_after_ms=2001), 429, {"retry-after": "3"}),
    (errors.ResourceExhausted("A", "a", retry_after_ms=0), 429, RETRY_AFTER_1),
    (errors.ResourceExhausted("MESSAGE_TOO_LARGE", "a"), 413, {}),
    (errors.ResourceExhausted("TENANT_QUOTA", "a", retry_after_ms=2500), 429, {"retry-after": "3"}),
    # It is larger than the quota, and never fits.
    (errors.ResourceExhausted("TENANT_QUOTA", "a"), 429, NO_RETRY),
    (errors.Cancelled("A", "a"), 499, {}),
    (errors.Internal("A", "a"), 500, {}),
    (errors.Unavailable("A", "a", retry_after_ms=500), 503, RETRY_AFTER_1),
    (errors.DeadlineExceeded("A", "a"), 504, NO_RETRY),
)


def test_error_response_has_status_and_retry_headers() -> None:
    for error, status, headers in STATUSES:
        response = error_response(error)

        found = {name: response.headers[name] for name in response.headers if not name.startswith("content-")}
        assert (response.status_code, found) == (status, headers), error
    assert set(STATUS_OF) == set(PentimentoError.__subclasses__())


def test_the_field_is_named_as_the_api_names_it() -> None:
    error = errors.InvalidArgument.of("width_px", "must be a multiple of 8")

    document = json.loads(bytes(error_response(error, {"width_px": "size"}).body))["error"]

    assert document == {
        "message": "size: must be a multiple of 8",
        "type": "invalid_request_error",
        "param": "size",
        "code": "INVALID_FIELD",
    }


def test_nothing_is_told_of_what_nobody_expected() -> None:
    known = as_known(RuntimeError("a secret"))

    assert "secret" not in known.message and known.reason == "UNEXPECTED"


STATUS_OF_GRPC = {
    # A stream that was reset: nobody answered, and the same call may be made again.
    grpc.StatusCode.CANCELLED: (503, "server_error"),
    grpc.StatusCode.UNKNOWN: (500, "server_error"),
    grpc.StatusCode.INVALID_ARGUMENT: (400, "invalid_request_error"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (504, "timeout_error"),
    grpc.StatusCode.NOT_FOUND: (404, "not_found_error"),
    grpc.StatusCode.ALREADY_EXISTS: (409, "conflict_error"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "permission_error"),
    grpc.StatusCode.UNAUTHENTICATED: (401, "authentication_error"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (429, "rate_limit_error"),
    grpc.StatusCode.FAILED_PRECONDITION: (409, "conflict_error"),
    grpc.StatusCode.ABORTED: (409, "conflict_error"),
    grpc.StatusCode.OUT_OF_RANGE: (400, "invalid_request_error"),
    grpc.StatusCode.UNIMPLEMENTED: (409, "conflict_error"),
    grpc.StatusCode.INTERNAL: (500, "server_error"),
    grpc.StatusCode.UNAVAILABLE: (503, "server_error"),
    grpc.StatusCode.DATA_LOSS: (500, "server_error"),
}


def test_error_response_of_grpc_status_is_openais() -> None:
    assert set(STATUS_OF_GRPC) == set(grpc.StatusCode) - {grpc.StatusCode.OK}
    for code, expected in STATUS_OF_GRPC.items():
        error = error_from_rpc(AioRpcError(code, Metadata(), Metadata(), "what a proxy says"))

        response = error_response(error)

        document = json.loads(bytes(response.body))
        assert (response.status_code, document["error"]["type"]) == expected, code
        assert set(document) == {"error"} and set(document["error"]) == {"message", "type", "param", "code"}
        assert document["error"]["param"] is None and document["error"]["code"]
        assert ("retry-after" in response.headers) == (expected[0] in (429, 503))


def test_error_response_is_the_same_after_grpc() -> None:
    for error in [cls("A_REASON", "a sentence") for cls in STATUS_OF]:
        details = (STATUS_DETAILS, to_status(error).SerializeToString())
        came = error_from_rpc(AioRpcError(code_of(error), Metadata(), Metadata(details), error.message))

        there, here = error_response(came), error_response(error)

        assert (there.status_code, there.body, there.raw_headers) == (here.status_code, here.body, here.raw_headers)
