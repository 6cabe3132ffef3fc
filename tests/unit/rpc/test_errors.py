"""The catalogue by itself: what cannot be shown better over a wire."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain import errors
from pentimento.domain.errors import FieldViolation, PentimentoError
from pentimento.rpc.errors import CODE_OF, cut, error_from_rpc, from_status, to_status
from pentimento.rpc.metadata import STATUS_DETAILS
from tests.support.logged import said_by

UNAVAILABLE, INTERNAL = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL


def rpc_error(code: grpc.StatusCode, details: str = "", packed: bytes | None = None) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata(*(((STATUS_DETAILS, packed),) if packed is not None else ()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=details)


def test_every_class_of_the_domain_has_a_code_of_its_own() -> None:
    assert set(CODE_OF) == set(PentimentoError.__subclasses__())
    assert len(set(CODE_OF.values())) == len(CODE_OF)


@given(st.text(), st.integers(3, 300))
def test_cut_text_fits_and_can_travel(text: str, size_bytes: int) -> None:
    assert len(cut(text, size_bytes).encode()) <= size_bytes


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_short_text_is_not_touched(text: str) -> None:
    assert cut(text) == text


def test_the_worst_status_stays_below_what_headers_may_be() -> None:
    huge = "\U0001f3a8" * 10_000
    violations = tuple(FieldViolation(huge, huge) for _ in range(100))
    metadata = {f"{number}{huge}": huge for number in range(100)}

    packed = to_status(errors.InvalidArgument(huge, huge, violations=violations, metadata=metadata)).SerializeToString()

    assert len(packed) * 4 / 3 + 3 * 512 < 8192


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_foreign_status_is_some_error_without_its_text(code: grpc.StatusCode) -> None:
    error = error_from_rpc(rpc_error(code, "ipv4:10.0.0.3:50051: canary"))

    assert isinstance(error, PentimentoError)
    assert "canary" not in error.message


def test_details_of_another_domain_are_not_taken_for_ours() -> None:
    packed = status_pb2.Status(code=5, message="theirs").SerializeToString()

    assert error_from_rpc(rpc_error(grpc.StatusCode.NOT_FOUND, "theirs", packed)).reason == "NOT_FOUND"


def test_details_that_are_garbage_are_ignored() -> None:
    assert error_from_rpc(rpc_error(grpc.StatusCode.NOT_FOUND, "", b"\xff\xff\xff")).reason == "NOT_FOUND"


def test_a_later_code_is_an_internal_error() -> None:
    status = to_status(errors.NotFound("R", "m"))
    status.code = 99

    assert type(from_status(status)) is errors.Internal


def test_a_size_refusal_of_another_wording_has_no_numbers() -> None:
    error = error_from_rpc(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER: message larger than max"))

    assert (error.reason, error.metadata) == ("MESSAGE_TOO_LARGE", {})


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("a" * 10, "a" * 10),
        ("a" * 11, "a" * 7 + "…"),
        ("é" * 6, "é" * 3 + "…"),
        ("\ud800" * 3, "???"),
        ("\ud800" * 11, "?" * 7 + "…"),
    ],
)
def test_what_is_too_long_ends_with_an_ellipsis_within_the_limit(text: str, whole: str) -> None:
    assert cut(text, 10) == whole


def test_a_status_carries_six_of_everything_each_cut_to_its_size() -> None:
    huge = "x" * 1000
    violations = tuple(FieldViolation(huge, huge) for _ in range(7))
    metadata = {f"{number}{huge}": huge for number in range(7)}

    told = from_status(to_status(errors.InvalidArgument(huge, huge, violations=violations, metadata=metadata)))

    assert told is not None
    assert [len(text.encode()) for text in (told.message, told.reason)] == [512, 96]
    assert {(len(one.field.encode()), len(one.description.encode())) for one in told.violations} == {(96, 192)}
    assert {(len(key.encode()), len(value.encode())) for key, value in told.metadata.items()} == {(96, 192)}
    assert (len(told.violations), len(told.metadata)) == (6, 6)


@pytest.mark.parametrize("retry_after_ms", [None, 0, 250])
def test_when_to_come_back_is_told_where_it_is_known(retry_after_ms: int | None) -> None:
    status = to_status(errors.Unavailable("BUSY", "m", retry_after_ms=retry_after_ms))

    told = from_status(status)

    assert told is not None and told.retry_after_ms == retry_after_ms
    assert len(status.details) == (1 if retry_after_ms is None else 2)


def test_other_libraries_find_our_domain_in_the_status() -> None:
    info = error_details_pb2.ErrorInfo()
    to_status(errors.NotFound("GONE", "m")).details[0].Unpack(info)

    assert (info.reason, info.domain) == ("GONE", "pentimento")


@pytest.mark.parametrize(
    ("code", "cls", "message"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable, "the server cannot be reached"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded, "the deadline passed before the answer came"),
        (grpc.StatusCode.UNIMPLEMENTED, errors.FailedPrecondition, "the server does not know this call"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.ResourceExhausted, "the server or the connection refused more"),
        (grpc.StatusCode.OUT_OF_RANGE, errors.InvalidArgument, "the call failed with OUT_OF_RANGE"),
        (grpc.StatusCode.ALREADY_EXISTS, errors.FailedPrecondition, "the call failed with ALREADY_EXISTS"),
        (grpc.StatusCode.UNKNOWN, errors.Internal, "the call failed with UNKNOWN"),
        (grpc.StatusCode.DATA_LOSS, errors.Internal, "the call failed with DATA_LOSS"),
    ],
)
def test_a_foreign_status_is_told_in_our_words(code: grpc.StatusCode, cls: type[PentimentoError], message: str) -> None:
    error = error_from_rpc(rpc_error(code, "theirs"))

    assert (type(error), error.reason, error.message) == (cls, code.name, message)


def test_a_stream_that_was_reset_was_not_answered() -> None:
    error = error_from_rpc(rpc_error(grpc.StatusCode.CANCELLED, "Received RST_STREAM with error code 8"))

    assert (type(error), error.reason) == (errors.Unavailable, "UNAVAILABLE")


def test_a_cancel_that_was_told_stays_one() -> None:
    packed = to_status(errors.Cancelled("CANCELLED", "cancelled by the client")).SerializeToString()

    assert type(error_from_rpc(rpc_error(grpc.StatusCode.CANCELLED, "", packed))) is errors.Cancelled


def test_grpc_s_own_refusal_of_a_size_is_told_with_both_sizes() -> None:
    words = "CLIENT: Sent message larger than max (2097152 vs. 1048576)"

    error = error_from_rpc(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, words))

    assert (error.reason, error.metadata) == (
        "MESSAGE_TOO_LARGE",
        {"size_bytes": "2097152", "limit_bytes": "1048576"},
    )
    assert error.message == "the message is too large: 2097152 bytes are more than the limit of 1048576 bytes"


@pytest.mark.parametrize("sizes", ["(secret vs. 1048576)", "(2097152 vs. secret)", ""])
def test_what_is_no_size_is_not_passed_on(sizes: str) -> None:
    error = error_from_rpc(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, f"larger than max {sizes}"))

    assert (error.message, error.metadata) == ("the message is too large", {})


def test_a_size_is_a_matter_of_exhaustion_alone() -> None:
    assert error_from_rpc(rpc_error(grpc.StatusCode.INTERNAL, "larger than max (2 vs. 1)")).reason == "INTERNAL"


def test_an_error_of_no_known_class_is_internal() -> None:
    assert to_status(PentimentoError("R", "m")).code == grpc.StatusCode.INTERNAL.value[0]


def test_why_a_server_cannot_be_reached_is_told_to_the_debug_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "pentimento.rpc.errors")

    told = [error_from_rpc(rpc_error(code, "10.0.0.1: refused")).message for code in (UNAVAILABLE, INTERNAL)]

    assert not any("10.0.0.1" in message for message in told)
    assert [(record.message, record.__dict__["details"]) for record in said_by("pentimento.rpc.errors", caplog)] == [
        ("unreachable", "10.0.0.1: refused")
    ]


def test_a_call_that_failed_without_trailing_metadata_is_told_by_its_code() -> None:
    error = error_from_rpc(grpc.aio.AioRpcError(UNAVAILABLE, None, None, details="gone"))  # type: ignore[arg-type]

    assert (type(error), error.message) == (errors.Unavailable, "the server cannot be reached")
