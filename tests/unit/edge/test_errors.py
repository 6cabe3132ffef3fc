"""Errors of the catalogue as HTTP answers in OpenAI's shape."""

import json

import pytest
from starlette.requests import HTTPConnection

from pentimento.domain import errors
from pentimento.domain.errors import PentimentoError
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
        (errors.Cancelled("A", "a"), 499, {}),
        (errors.Internal("A", "a"), 500, {}),
        (errors.Unavailable("A", "a", retry_after_ms=500), 503, {"retry-after": "1"}),
        (errors.DeadlineExceeded("A", "a"), 504, {}),
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


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Basic abc", "abc", "Bearer a\tb", "Bearer " + "a" * 2000])
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
