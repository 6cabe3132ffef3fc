"""Read the caller of a request: one token and one key, each within its limit."""

import pytest
from starlette.requests import Request

from pentimento.domain.errors import InvalidArgument, Unauthenticated
from services.edge.http.callers import MAX_KEY_CHARS, MAX_TOKEN_CHARS, idempotency_key_of, token_of


def request_with(name: str, *values: str) -> Request:
    return Request({"type": "http", "headers": [(name.encode(), value.encode("latin-1")) for value in values]})


def test_token_is_read_or_refused() -> None:
    """Clients without a key send an empty or another authorization: that is no token."""
    longest = "a" * MAX_TOKEN_CHARS
    taken = {"Bearer abc": "abc", "bearer abc": "abc", "BEARER   abc": "abc", "Bearer  abc ": "abc"}
    taken[f"Bearer {longest}"] = longest
    absent = dict.fromkeys(["Bearer ", "Bearer", "", " ", "Basic abc", "Basic Og==", "abc"])
    for given, token in (taken | absent).items():
        assert token_of(request_with("authorization", given)) == token, given
    for wrong in (
        (f"Bearer {longest}a",),
        ("Bearer " + "a" * 2000,),
        ("Bearer a\tb",),
        ("Bearer é",),
        ("Bearer a", "Bearer b"),
        ("Basic a", "Bearer b"),
    ):
        with pytest.raises(Unauthenticated):
            token_of(request_with("authorization", *wrong))
    assert token_of(request_with("accept", "*/*")) is None


def test_idempotency_key_is_read_or_refused_by_name() -> None:
    for key in ("k", "a key of its own", "~" * 128, "k" * MAX_KEY_CHARS):
        assert idempotency_key_of(request_with("idempotency-key", key)) == key
    assert idempotency_key_of(request_with("accept", "*/*")) == ""
    for wrong in (("",), ("k" * (MAX_KEY_CHARS + 1),), ("k" * 129,), ("a\tb",), ("é",), ("a", "a")):
        with pytest.raises(InvalidArgument) as refused:
            idempotency_key_of(request_with("idempotency-key", *wrong))
        assert [violation.field for violation in refused.value.violations] == ["Idempotency-Key"]
