"""JSON with bytes in it, read again by the standard library."""

import base64
import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from services.edge.http.answers import Base64, DocumentResponse, document_bytes

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")) | st.binary(max_size=40),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=12,
)


def with_bytes(value: Any, made: Any) -> Any:
    if isinstance(value, bytes):
        return made(value)
    if isinstance(value, list):
        return [with_bytes(one, made) for one in value]
    return {key: with_bytes(one, made) for key, one in value.items()} if isinstance(value, dict) else value


@given(VALUES, st.booleans())
def test_document_equals_json_with_bytes_in_base64(value: Any, ascii_only: bool) -> None:
    written = document_bytes(with_bytes(value, Base64), ensure_ascii=ascii_only)

    assert json.loads(written) == with_bytes(value, lambda data: base64.b64encode(data).decode())
    assert written.isascii() or not ascii_only


def test_value_unknown_to_json_is_rejected() -> None:
    with pytest.raises(TypeError, match="bytes"):
        document_bytes({"image": b"raw"})


def test_a_response_has_the_length_of_its_document() -> None:
    response = DocumentResponse({"b64_json": Base64(b"png")})

    assert response.body == b'{"b64_json":"cG5n"}'
    assert response.headers["content-length"] == "19"
