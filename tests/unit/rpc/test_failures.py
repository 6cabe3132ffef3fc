"""Answer and log failed calls."""

import logging

import grpc
import pytest

from pentimento.domain import errors
from pentimento.domain.errors import PentimentoError
from pentimento.rpc.errors import explain, not_received, shutting_down, too_many_calls, too_many_messages
from tests.support.logged import said_by

PATH = "/a.B/C"
REFUSED = errors.NotFound("GONE", "it is gone")


def after_rpc(error: PentimentoError) -> PentimentoError:
    error.__cause__ = grpc.RpcError()
    return error


def test_refusals_have_reason_and_retry_time() -> None:
    for error, expected in (
        (shutting_down(), (errors.Unavailable, "SHUTTING_DOWN", 250)),
        (too_many_calls("full"), (errors.ResourceExhausted, "TOO_MANY_CALLS", 250)),
        (too_many_calls("full", 3.0), (errors.ResourceExhausted, "TOO_MANY_CALLS", 3000)),
        (too_many_messages(), (errors.ResourceExhausted, "TOO_MANY_MESSAGES", 250)),
        (not_received(), (errors.DeadlineExceeded, "REQUEST_NOT_RECEIVED", None)),
    ):
        assert (type(error), error.reason, error.retry_after_ms) == expected


def test_domain_error_is_answered_as_it_is() -> None:
    for error in (
        REFUSED,
        errors.Unauthenticated("TOKEN_REQUIRED", "the caller's own"),
        after_rpc(errors.NotFound("GONE", "another process's answer")),
        errors.Internal("CORRUPT", "ours", metadata={"error_id": "7"}),
    ):
        assert explain(error, PATH) is error
    group: Exception = REFUSED
    for _ in range(3):  # a task group's first, however deep
        group = ExceptionGroup("tasks", [group, errors.Internal("LATER", "another")])
        assert explain(group, PATH) is REFUSED


def test_other_error_is_a_defect_with_an_id() -> None:
    for error in (
        KeyError("canary"),
        after_rpc(errors.Unauthenticated("UNKNOWN_TOKEN", "canary")),
        after_rpc(errors.PermissionDenied("ROLE_NOT_ALLOWED", "canary")),
        ExceptionGroup("canary", [KeyError("canary")]),
        ExceptionGroup("canary", [REFUSED, KeyError("canary")]),
        ExceptionGroup("canary", [ExceptionGroup("canary", [KeyError("canary"), REFUSED])]),
    ):
        found = explain(error, PATH)
        assert (type(found), found.reason) == (errors.Internal, "UNEXPECTED")
        assert len(bytes.fromhex(found.metadata["error_id"])) == 8
        assert found.message == f"internal error {found.metadata['error_id']}"


def test_defect_is_logged_with_method_reason_and_id(caplog: pytest.LogCaptureFixture) -> None:
    explain(errors.Internal("CORRUPT", "ours", metadata={"error_id": "7"}), PATH)
    explain(errors.Internal("CORRUPT", "ours"), PATH)

    records = said_by("pentimento.rpc.errors", caplog)
    assert [record.levelno for record in records] == [logging.ERROR] * 2
    fields = [tuple(getattr(record, name) for name in ("method", "reason", "error_id")) for record in records]
    assert fields == [(PATH, "CORRUPT", "7"), (PATH, "CORRUPT", "")]


def test_rejection_is_logged_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pentimento.rpc.errors"):
        explain(REFUSED, PATH)
    with caplog.at_level(logging.INFO, "pentimento.rpc.errors"):
        explain(REFUSED, PATH)

    assert [(record.levelname, record.getMessage()) for record in said_by("pentimento.rpc.errors", caplog)] == [
        ("DEBUG", "call rejected")
    ]
