"""What a failed call is answered with, and what is logged of it."""

import logging

import grpc
import pytest

from pentimento.domain import errors
from pentimento.domain.errors import PentimentoError
from pentimento.rpc.failures import (
    explain,
    not_received,
    shutting_down,
    too_many_calls,
    too_many_calls_of_one,
    too_many_messages,
)
from tests.support.logged import said_by

PATH = "/a.B/C"
REFUSED = errors.NotFound("GONE", "it is gone")


def after_rpc(error: PentimentoError) -> PentimentoError:
    error.__cause__ = grpc.RpcError()
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (shutting_down(), (errors.Unavailable, "SHUTTING_DOWN", 250)),
        (too_many_calls(3), (errors.ResourceExhausted, "TOO_MANY_CALLS", 250)),
        (too_many_calls_of_one(3), (errors.ResourceExhausted, "TOO_MANY_CALLS", 250)),
        (too_many_messages(), (errors.ResourceExhausted, "TOO_MANY_MESSAGES", 250)),
        (not_received(), (errors.DeadlineExceeded, "REQUEST_NOT_RECEIVED", None)),
    ],
)
def test_a_refusal_of_the_kit_says_why_and_when_to_come_back(error: PentimentoError, told: tuple[object, ...]) -> None:
    assert (type(error), error.reason, error.retry_after_ms) == told


@pytest.mark.parametrize(
    "error",
    [
        REFUSED,
        errors.Unauthenticated("TOKEN_REQUIRED", "the caller's own"),
        after_rpc(errors.NotFound("GONE", "another process's answer")),
        errors.Internal("CORRUPT", "ours", metadata={"error_id": "7"}),
    ],
)
def test_a_domain_error_is_answered_as_it_is(error: PentimentoError) -> None:
    assert explain(error, PATH) is error


@pytest.mark.parametrize(
    "error",
    [
        KeyError("canary"),
        after_rpc(errors.Unauthenticated("UNKNOWN_TOKEN", "canary")),
        after_rpc(errors.PermissionDenied("ROLE_NOT_ALLOWED", "canary")),
        ExceptionGroup("canary", [KeyError("canary")]),
        ExceptionGroup("canary", [REFUSED, KeyError("canary")]),
        ExceptionGroup("canary", [ExceptionGroup("canary", [KeyError("canary"), REFUSED])]),
    ],
)
def test_anything_else_is_a_defect_with_an_id(error: Exception) -> None:
    told = explain(error, PATH)

    assert (type(told), told.reason) == (errors.Internal, "UNEXPECTED")
    assert len(bytes.fromhex(told.metadata["error_id"])) == 8
    assert told.message == f"internal error {told.metadata['error_id']}"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_domain_errors_of_a_task_group_are_its_first_however_deep(depth: int) -> None:
    group: Exception = REFUSED
    for _ in range(depth):
        group = ExceptionGroup("tasks", [group, errors.Internal("LATER", "another")])

    assert explain(group, PATH) is REFUSED


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (errors.Internal("CORRUPT", "ours", metadata={"error_id": "7"}), (PATH, "CORRUPT", "7")),
        (errors.Internal("CORRUPT", "ours"), (PATH, "CORRUPT", "")),
    ],
)
def test_a_defect_is_logged_with_its_method_reason_and_id(
    error: errors.Internal, fields: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    explain(error, PATH)

    (record,) = said_by("pentimento.rpc.failures", caplog)
    assert record.levelno == logging.ERROR
    assert tuple(getattr(record, name) for name in ("method", "reason", "error_id")) == fields


def test_a_refusal_is_logged_for_who_debugs_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pentimento.rpc.failures"):
        explain(REFUSED, PATH)
    with caplog.at_level(logging.INFO, "pentimento.rpc.failures"):
        explain(REFUSED, PATH)

    assert [(record.levelname, record.getMessage()) for record in said_by("pentimento.rpc.failures", caplog)] == [
        ("DEBUG", "call rejected")
    ]
