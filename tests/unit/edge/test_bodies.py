"""Test the exact limits of bodies, and the return of their bytes."""

import pytest
from starlette.requests import Request

from pentimento.domain.errors import InvalidArgument, ResourceExhausted, Unavailable
from services.edge.http.bodies import BodyBudget, check_declared_size, check_encoding


def request_with(**headers: str) -> Request:
    told = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": told})


def test_body_may_reach_its_limit() -> None:
    budget = BodyBudget(max_body_bytes=10, max_bodies_bytes=100)

    with budget.held("a") as body:
        body.add(b"12345")
        body.add(b"12345")
        with pytest.raises(ResourceExhausted):
            body.add(b"1")

    assert body.size_bytes == 10


def test_bodies_may_reach_common_limit_and_give_bytes_back() -> None:
    budget = BodyBudget(max_body_bytes=10, max_bodies_bytes=20)

    with budget.held("a") as one, budget.held("b") as another:
        one.add(bytes(10))
        another.add(bytes(10))
        with budget.held("c") as third, pytest.raises(Unavailable, match="too many large requests at the same time"):
            third.add(b"1")

    with budget.held("a") as one, budget.held("b") as another:
        one.add(bytes(10))
        another.add(bytes(10))


@pytest.mark.parametrize(("max_bodies_bytes", "share_bytes"), [(40, 20), (41, 20), (12, 10)])
def test_one_caller_has_half_of_the_bytes_or_one_body(max_bodies_bytes: int, share_bytes: int) -> None:
    budget = BodyBudget(max_body_bytes=10, max_bodies_bytes=max_bodies_bytes)

    with budget.held("a") as first, budget.held("a") as second, budget.held("a") as third, budget.held("b") as other:
        first.add(bytes(10))
        second.add(bytes(share_bytes - 10))
        with pytest.raises(Unavailable, match="too many large requests of one caller at the same time"):
            third.add(b"1")
        other.add(b"1")


def test_declared_size_is_checked_before_body_is_read() -> None:
    for declared in ("0", "10", "000000000000000010"):
        check_declared_size(request_with(content_length=declared), 10)
    for declared in ("11", "9" * 19, "9" * 5000):
        with pytest.raises(ResourceExhausted, match="at most 10 bytes"):
            check_declared_size(request_with(content_length=declared), 10)
    for declared in ("-1", "1e3", "ten", ""):
        with pytest.raises(InvalidArgument, match="Content-Length"):
            check_declared_size(request_with(content_length=declared), 10)


def test_no_compressed_body_is_taken() -> None:
    check_encoding(request_with(content_encoding=" Identity "))

    with pytest.raises(InvalidArgument, match="Content-Encoding"):
        check_encoding(request_with(content_encoding="gzip"))
