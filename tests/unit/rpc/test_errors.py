"""The catalogue of errors, for cases that are hard to show over a wire."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain import errors
from pentimento.domain.errors import FieldViolation, PentimentoError
from pentimento.rpc.context import STATUS_DETAILS
from pentimento.rpc.errors import CODE_OF, cut, error_from_rpc, from_status, to_status
from tests.support.logged import said_by

UNAVAILABLE, INTERNAL = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL


def rpc_error(code: grpc.StatusCode, details: str = "", packed: bytes | None = None) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata(*(((STATUS_DETAILS, packed),) if packed is not None else ()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=details)


def test_every_domain_error_has_its_code() -> None:
    assert set(CODE_OF) == set(PentimentoError.__subclasses__())
    assert len(set(CODE_OF.values())) == len(CODE_OF)


@given(st.text(), st.integers(3, 300))
def test_cut_text_fits_and_can_travel(text: str, size_bytes: int) -> None:
    assert len(cut(text, size_bytes).encode()) <= size_bytes


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_short_text_is_not_touched(text: str) -> None:
    assert cut(text) == text


def test_largest_status_fits_headers() -> None:
    huge = "\U0001f3a8" * 10_000
    violations = tuple(FieldViolation(huge, huge) for _ in range(100))
    metadata = {f"{number}{huge}": huge for number in range(100)}

    packed = to_status(errors.InvalidArgument(huge, huge, violations=violations, metadata=metadata)).SerializeToString()

    assert len(packed) * 4 / 3 + 3 * 512 < 8192


def test_cut_text_too_long_ends_with_ellipsis() -> None:
    for text, found in (
        ("a" * 10, "a" * 10),
        ("a" * 11, "a" * 7 + "…"),
        ("é" * 6, "é" * 3 + "…"),
        ("\ud800" * 3, "???"),
        ("\ud800" * 11, "?" * 7 + "…"),
    ):
        assert cut(text, 10) == found


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


Code = grpc.StatusCode
LARGER = "the message is too large"
THEIRS = status_pb2.Status(code=5, message="theirs").SerializeToString()
OURS = to_status(errors.Cancelled("CANCELLED", "cancelled by the client")).SerializeToString()
Foreign = tuple[grpc.StatusCode, str, bytes | None, type[PentimentoError], str, str]


def theirs(code: grpc.StatusCode, cls: type[PentimentoError], message: str = "") -> Foreign:
    """Return a row of FOREIGN for a status without details; its reason is its code."""
    return code, "theirs", None, cls, code.name, message or f"the call failed with {code.name}"


def too_large(details: str) -> Foreign:
    return Code.RESOURCE_EXHAUSTED, details, None, errors.ResourceExhausted, "MESSAGE_TOO_LARGE", LARGER


# Code, details and packed status of another library or of gRPC itself; class, reason and message of our error.
FOREIGN: tuple[Foreign, ...] = (
    theirs(Code.UNAVAILABLE, errors.Unavailable, "the server cannot be reached"),
    theirs(Code.DEADLINE_EXCEEDED, errors.DeadlineExceeded, "the deadline passed before the answer came"),
    theirs(Code.UNIMPLEMENTED, errors.FailedPrecondition, "the server does not know this call"),
    theirs(Code.RESOURCE_EXHAUSTED, errors.ResourceExhausted, "the server or the connection refused more"),
    theirs(Code.OUT_OF_RANGE, errors.InvalidArgument),
    theirs(Code.ALREADY_EXISTS, errors.FailedPrecondition),
    theirs(Code.UNKNOWN, errors.Internal),
    theirs(Code.DATA_LOSS, errors.Internal),
    # A stream that was reset was not answered; a cancel with our details stays one.
    (Code.CANCELLED, "Received RST_STREAM with error code 8", None, errors.Unavailable, "UNAVAILABLE", ""),
    (Code.CANCELLED, "", OURS, errors.Cancelled, "CANCELLED", ""),
    (Code.NOT_FOUND, "theirs", THEIRS, errors.NotFound, "NOT_FOUND", ""),
    (Code.NOT_FOUND, "", b"\xff\xff\xff", errors.NotFound, "NOT_FOUND", ""),
    # Sizes in gRPC's own message are digits, and belong to RESOURCE_EXHAUSTED alone.
    too_large("SERVER: message larger than max"),
    too_large("larger than max (secret vs. 1)"),
    too_large("larger than max (1 vs. secret)"),
    (Code.INTERNAL, "larger than max (2 vs. 1)", None, errors.Internal, "INTERNAL", ""),
)


def test_foreign_status_becomes_our_error_without_its_text() -> None:
    for code, details, packed, cls, reason, message in FOREIGN:
        error = error_from_rpc(rpc_error(code, details, packed))

        assert (type(error), error.reason) == (cls, reason), (code, details)
        assert error.message == message if message else "theirs" not in error.message
        assert error.metadata == {}
    for code in set(Code) - {Code.OK}:
        error = error_from_rpc(rpc_error(code, "ipv4:10.0.0.3:50051: canary"))
        assert isinstance(error, PentimentoError)
        assert "canary" not in error.message
    without = error_from_rpc(grpc.aio.AioRpcError(UNAVAILABLE, None, None, details="gone"))  # type: ignore[arg-type]
    assert (type(without), without.message) == (errors.Unavailable, "the server cannot be reached")


def test_grpcs_own_size_refusal_has_both_sizes() -> None:
    words = "CLIENT: Sent message larger than max (2097152 vs. 1048576)"

    error = error_from_rpc(rpc_error(Code.RESOURCE_EXHAUSTED, words))

    sizes = {"size_bytes": "2097152", "limit_bytes": "1048576"}
    assert (error.reason, error.metadata) == ("MESSAGE_TOO_LARGE", sizes)
    assert error.message == "the message is too large: 2097152 bytes are more than the limit of 1048576 bytes"


def test_status_of_our_error_is_read_by_us_and_others() -> None:
    for retry_after_ms in (None, 0, 250):
        status = to_status(errors.Unavailable("BUSY", "m", retry_after_ms=retry_after_ms))
        found = from_status(status)
        assert found is not None and found.retry_after_ms == retry_after_ms
        assert len(status.details) == (1 if retry_after_ms is None else 2)
    info, status = error_details_pb2.ErrorInfo(), to_status(errors.NotFound("GONE", "m"))
    status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("GONE", "pentimento")
    # A code of a later version, and a class that the catalogue does not have.
    status.code = 99
    assert type(from_status(status)) is errors.Internal
    assert to_status(PentimentoError("R", "m")).code == Code.INTERNAL.value[0]


def test_reason_of_unreachable_server_is_in_debug_log_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "pentimento.rpc.errors")

    told = [error_from_rpc(rpc_error(code, "10.0.0.1: refused")).message for code in (UNAVAILABLE, INTERNAL)]

    assert not any("10.0.0.1" in message for message in told)
    assert [(record.message, record.__dict__["details"]) for record in said_by("pentimento.rpc.errors", caplog)] == [
        ("unreachable", "10.0.0.1: refused")
    ]
