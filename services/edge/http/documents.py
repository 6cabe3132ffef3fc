"""Documents as JSON, with bytes in them as base64."""

import base64
import json
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from starlette.responses import JSONResponse


@dataclass(frozen=True)
class Base64:
    """Bytes that stand in a document as a text in base64."""

    data: bytes = field(repr=False)


def document_bytes(document: Any, *, ensure_ascii: bool = False) -> bytes:
    """Return a document as JSON in UTF-8. A text in base64 needs no escapes, and is put where it belongs as it is: to
    look at each of its characters took as long as all else that is done for a large picture."""
    texts: list[bytes] = []
    # Whatever a document quotes, it does not know this.
    mark = token_hex(16)

    def marked(value: object) -> str:
        if not isinstance(value, Base64):
            raise TypeError(f"{type(value).__name__} is nothing that JSON has")
        texts.append(base64.b64encode(value.data))
        return mark

    written = json.dumps(
        document, default=marked, ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":")
    ).encode()
    parts = written.split(mark.encode())
    return b"".join(part for pair in zip(parts, [*texts, b""], strict=True) for part in pair)


class DocumentResponse(JSONResponse):
    """A response whose document may hold `Base64`."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return document_bytes(content)
