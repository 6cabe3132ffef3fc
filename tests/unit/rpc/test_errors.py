"""The catalogue by itself: what cannot be shown better over a wire."""

import grpc
import pytest
from google.rpc import status_pb2
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain import errors
from pentimento.domain.errors import FieldViolation, PentimentoError
from pentimento.rpc.errors import CODE_OF, cut, error_from_rpc, from_status, to_status
from pentimento.rpc.metadata import STATUS_DETAILS


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
