"""What a request may say of its caller: one token and one key, each within its limit."""

import pytest
from starlette.requests import Request

from pentimento.domain.errors import InvalidArgument, Unauthenticated
from services.edge.http.callers import MAX_KEY_CHARS, MAX_TOKEN_CHARS, idempotency_key_of, token_of


def request_with(name: str, *values: str) -> Request:
    return Request({"type": "http", "headers": [(name.encode(), value.encode("latin-1")) for value in values]})


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER   "])
def test_the_token_is_what_stands_behind_the_scheme(scheme: str) -> None:
    assert token_of(request_with("authorization", f"{scheme}abc")) == "abc"


def test_a_token_may_have_as_many_characters_as_the_limit_says() -> None:
    token = "a" * MAX_TOKEN_CHARS

    assert token_of(request_with("authorization", f"Bearer {token}")) == token
    with pytest.raises(Unauthenticated):
        token_of(request_with("authorization", f"Bearer {token}a"))


@pytest.mark.parametrize("given", ["Bearer ", "Bearer", "", " ", "Basic abc", "Basic Og==", "abc"])
def test_empty_or_other_authorization_is_no_token(given: str) -> None:
    """What clients send whose user has set no key; where a token is needed the frontdoor says so."""
    assert token_of(request_with("authorization", given)) is None


@pytest.mark.parametrize("given", [("Bearer a\tb",), ("Bearer é",), ("Bearer a", "Bearer b"), ("Basic a", "Bearer b")])
def test_what_can_be_no_token_is_refused(given: tuple[str, ...]) -> None:
    with pytest.raises(Unauthenticated):
        token_of(request_with("authorization", *given))


def test_without_a_header_there_is_neither_token_nor_key() -> None:
    request = request_with("accept", "*/*")

    assert (token_of(request), idempotency_key_of(request)) == (None, "")


def test_a_key_may_have_as_many_characters_as_the_limit_says() -> None:
    key = "k" * MAX_KEY_CHARS

    assert idempotency_key_of(request_with("idempotency-key", key)) == key


@pytest.mark.parametrize("given", [("",), ("k" * (MAX_KEY_CHARS + 1),), ("a\tb",), ("é",), ("a", "a")])
def test_what_can_be_no_key_is_refused_by_name(given: tuple[str, ...]) -> None:
    with pytest.raises(InvalidArgument, match="Idempotency-Key"):
        idempotency_key_of(request_with("idempotency-key", *given))
