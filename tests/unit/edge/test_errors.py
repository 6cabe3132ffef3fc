"""Errors of the catalogue as HTTP answers in OpenAI's shape."""

import json

from pentimento.domain import errors
from pentimento.domain.errors import PentimentoError
from services.edge.http.answers import STATUS_OF, as_known, error_response

RETRY_AFTER_1, NO_RETRY = {"retry-after": "1"}, {"x-should-retry": "false"}
STATUSES: tuple[tuple[PentimentoError, int, str, dict[str, str]], ...] = (
    (errors.InvalidArgument("A", "a"), 400, "invalid_request_error", {}),
    (errors.Unauthenticated("A", "a"), 401, "authentication_error", {"www-authenticate": "Bearer"}),
    (errors.PermissionDenied("A", "a"), 403, "permission_error", {}),
    (errors.NotFound("A", "a"), 404, "not_found_error", {}),
    (errors.FailedPrecondition("A", "a"), 409, "conflict_error", NO_RETRY),
    (errors.Aborted("A", "a"), 409, "conflict_error", {}),
    (errors.ResourceExhausted("A", "a"), 429, "rate_limit_error", RETRY_AFTER_1),
    (errors.ResourceExhausted("A", "a", retry_after_ms=2001), 429, "rate_limit_error", {"retry-after": "3"}),
    (errors.ResourceExhausted("A", "a", retry_after_ms=0), 429, "rate_limit_error", RETRY_AFTER_1),
    (errors.ResourceExhausted("MESSAGE_TOO_LARGE", "a"), 413, "invalid_request_error", {}),
    (errors.ResourceExhausted("TENANT_QUOTA", "a", retry_after_ms=2500), 429, "rate_limit_error", {"retry-after": "3"}),
    # It is larger than the quota, and never fits.
    (errors.ResourceExhausted("TENANT_QUOTA", "a"), 429, "rate_limit_error", NO_RETRY),
    (errors.Cancelled("A", "a"), 499, "request_cancelled", {}),
    (errors.Internal("A", "a"), 500, "server_error", {}),
    (errors.Unavailable("A", "a", retry_after_ms=500), 503, "server_error", RETRY_AFTER_1),
    (errors.DeadlineExceeded("A", "a"), 504, "timeout_error", NO_RETRY),
)


def test_error_response_has_status_and_retry_headers() -> None:
    for error, status, kind, headers in STATUSES:
        response = error_response(error)

        found = {name: response.headers[name] for name in response.headers if not name.startswith("content-")}
        told = json.loads(bytes(response.body))["error"]
        assert (response.status_code, found) == (status, headers), error
        assert told.pop("message").startswith("a") and told == {"type": kind, "param": None, "code": error.reason}
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


def test_unexpected_error_hides_its_message() -> None:
    known = as_known(RuntimeError("a secret"))

    assert "secret" not in known.message and known.reason == "UNEXPECTED"
