"""Documents as JSON, with bytes in them as base64."""

import base64
import json
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from starlette.responses import JSONResponse


@dataclass(frozen=True)
class Base64:
    """Bytes that a document contains as a base64 text."""

    data: bytes = field(repr=False)


def document_bytes(document: Any, *, ensure_ascii: bool = False) -> bytes:
    """Return a document as JSON in UTF-8.

    Base64 texts need no escapes and are inserted after the encoding: scanning their characters took as long as all
    other work for a large image."""
    texts: list[bytes] = []
    # A random mark, which no document can contain.
    mark = token_hex(16)

    def marked(value: object) -> str:
        if not isinstance(value, Base64):
            raise TypeError(f"{type(value).__name__} is not a JSON value")
        texts.append(base64.b64encode(value.data))
        return mark

    written = json.dumps(
        document, default=marked, ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":")
    ).encode()
    parts = written.split(mark.encode())
    return b"".join(part for pair in zip(parts, [*texts, b""], strict=True) for part in pair)


class DocumentResponse(JSONResponse):
    """A response with a document that may contain `Base64`."""

    def render(self, content: Any) -> bytes:
        """Encode the body."""
        return document_bytes(content)
