"""Errors of the catalogue as HTTP answers in OpenAI's shape."""

import json

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata
from starlette.requests import HTTPConnection

from pentimento.domain import errors
from pentimento.domain.errors import PentimentoError
from pentimento.rpc.errors import code_of, error_from_rpc, to_status
from pentimento.rpc.metadata import STATUS_DETAILS
from services.edge.http.callers import idempotency_key_of, token_of
from services.edge.http.errors import STATUS_OF, as_known, error_response
from tests.unit.edge.test_origins import request


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (errors.InvalidArgument("A", "a"), 400, {}),
        (errors.Unauthenticated("A", "a"), 401, {"www-authenticate": "Bearer"}),
        (errors.PermissionDenied("A", "a"), 403, {}),
        (errors.NotFound("A", "a"), 404, {}),
        (errors.FailedPrecondition("A", "a"), 409, {"x-should-retry": "false"}),
        (errors.Aborted("A", "a"), 409, {}),
        (errors.ResourceExhausted("A", "a"), 429, {"retry-after": "1"}),
        (errors.ResourceExhausted("A", "a", retry_after_ms=2001), 429, {"retry-after": "3"}),
        (errors.ResourceExhausted("A", "a", retry_after_ms=0), 429, {"retry-after": "1"}),
        (errors.ResourceExhausted("MESSAGE_TOO_LARGE", "a"), 413, {}),
        (errors.ResourceExhausted("TENANT_QUOTA", "a", retry_after_ms=2500), 429, {"retry-after": "3"}),
        # It is larger than the quota, and never fits.
        (errors.ResourceExhausted("TENANT_QUOTA", "a"), 429, {"x-should-retry": "false"}),
        (errors.Cancelled("A", "a"), 499, {}),
        (errors.Internal("A", "a"), 500, {}),
        (errors.Unavailable("A", "a", retry_after_ms=500), 503, {"retry-after": "1"}),
        (errors.DeadlineExceeded("A", "a"), 504, {"x-should-retry": "false"}),
    ],
)
def test_an_error_has_a_status_and_says_when_to_come_back(
    error: PentimentoError, status: int, headers: dict[str, str]
) -> None:
    response = error_response(error)

    told = {name for name in response.headers if name not in ("content-length", "content-type")}
    assert response.status_code == status
    assert {name: response.headers[name] for name in told} == headers


def test_every_class_of_the_catalogue_has_a_status() -> None:
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


@pytest.mark.parametrize("given", ["Bearer abc", "bearer abc", "Bearer  abc "])
def test_a_bearer_token_is_read(given: str) -> None:
    assert token_of(request(authorization=given)) == "abc"


def test_without_a_header_there_is_no_token() -> None:
    assert token_of(request()) is None


@pytest.mark.parametrize("given", ["Bearer a\tb", "Bearer " + "a" * 2000])
def test_what_can_be_no_token_is_refused(given: str) -> None:
    with pytest.raises(errors.Unauthenticated):
        token_of(request(authorization=given))


@pytest.mark.parametrize("given", ["k", "a key of its own", "~" * 128])
def test_an_idempotency_key_is_read(given: str) -> None:
    assert idempotency_key_of(request(idempotency_key=given)) == given
    assert idempotency_key_of(request()) == ""


@pytest.mark.parametrize("given", ["", "k" * 129, "caf\xe9", "a\tb"])
def test_what_can_be_no_idempotency_key_is_refused_by_name(given: str) -> None:
    with pytest.raises(errors.InvalidArgument) as refused:
        idempotency_key_of(HTTPConnection({"type": "http", "headers": [(b"idempotency-key", given.encode("latin-1"))]}))

    assert [violation.field for violation in refused.value.violations] == ["Idempotency-Key"]


def test_two_idempotency_keys_are_none() -> None:
    headers = [(b"idempotency-key", b"k"), (b"idempotency-key", b"k")]

    with pytest.raises(errors.InvalidArgument, match="Idempotency-Key"):
        idempotency_key_of(HTTPConnection({"type": "http", "headers": headers}))


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


def test_every_status_of_grpc_has_one_of_http() -> None:
    assert set(STATUS_OF_GRPC) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


@pytest.mark.parametrize(("code", "told"), STATUS_OF_GRPC.items(), ids=lambda value: getattr(value, "name", ""))
def test_a_status_that_came_over_grpc_is_told_in_openais_shape(code: grpc.StatusCode, told: tuple[int, str]) -> None:
    error = error_from_rpc(AioRpcError(code, Metadata(), Metadata(), "what a proxy says"))

    response = error_response(error)

    document = json.loads(bytes(response.body))
    assert (response.status_code, document["error"]["type"]) == told
    assert set(document) == {"error"} and set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["param"] is None and document["error"]["code"]
    assert ("retry-after" in response.headers) == (told[0] in (429, 503))


@pytest.mark.parametrize("error", [cls("A_REASON", "a sentence") for cls in STATUS_OF])
def test_an_error_of_the_catalogue_is_told_alike_after_its_way_over_grpc(error: PentimentoError) -> None:
    details = (STATUS_DETAILS, to_status(error).SerializeToString())
    came = error_from_rpc(AioRpcError(code_of(error), Metadata(), Metadata(details), error.message))

    there, here = error_response(came), error_response(error)

    assert (there.status_code, there.body, there.raw_headers) == (here.status_code, here.body, here.raw_headers)
