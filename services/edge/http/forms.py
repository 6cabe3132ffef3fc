"""Parse multipart bodies as they arrive, in memory and within bounds."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from pentimento.domain.errors import Cancelled, InvalidArgument
from services.edge.http.bodies import HeldBody, check_declared_size, check_encoding

MAX_NAME_BYTES = 128
MAX_BOUNDARY_BYTES = 70
MAX_PART_HEADERS = 8
MAX_PART_HEADER_BYTES = 1024

# It warns of each malformed form: clients could fill the log.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


@dataclass(frozen=True)
class FormPart:
    """A part of a form. `is_file`: it has a file name, which is not stored."""

    name: str
    data: bytes
    is_file: bool


async def read_form(request: Request, held: HeldBody, max_body_bytes: int, max_parts: int) -> list[FormPart]:
    """Return the parts. InvalidArgument for a malformed form, too many parts or a part without a name."""
    check_declared_size(request, max_body_bytes)
    check_encoding(request)
    collector = PartCollector(max_parts)
    parser = collector.parser(boundary_of(request))
    try:
        async for chunk in request.stream():
            held.add(chunk)
            parser.write(chunk)
        parser.finalize()
    except ClientDisconnect:
        raise Cancelled("CLIENT_LEFT", "the client disconnected before the end of its request") from None
    except FormParserError:
        raise malformed() from None
    if not collector.ended:
        raise malformed()
    return collector.parts


def boundary_of(request: Request) -> bytes:
    """Return the boundary of the parts."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise InvalidArgument.of("Content-Type", "must be multipart/form-data with a boundary of 1 to 70 characters")
    return boundary


def malformed() -> InvalidArgument:
    return InvalidArgument.of("body", "must be a whole multipart/form-data body")


class PartCollector:
    """Collect the parts from the parser's callbacks."""

    def __init__(self, max_parts: int) -> None:
        self.parts: list[FormPart] = []
        self.ended = False
        self._max_parts = max_parts
        self._header_name = b""
        self._header_value = b""
        self._disposition = b""
        self._data: list[bytes] = []

    def parser(self, boundary: bytes) -> MultipartParser:
        """Return a parser that calls this collector."""
        callbacks: dict[str, Callable[..., Any]] = {
            "on_part_begin": self._begin,
            "on_part_data": self._add,
            "on_part_end": self._end,
            "on_header_field": self._name_header,
            "on_header_value": self._value_header,
            "on_header_end": self._end_header,
            "on_end": self._end_all,
        }
        return MultipartParser(
            boundary,
            callbacks,  # type: ignore[arg-type]
            max_header_count=MAX_PART_HEADERS,
            max_header_size=MAX_PART_HEADER_BYTES,
        )

    def _begin(self) -> None:
        if len(self.parts) >= self._max_parts:
            raise InvalidArgument.of("body", f"must have at most {self._max_parts} parts")
        self._disposition, self._data = b"", []

    def _name_header(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _value_header(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def _add(self, data: bytes, start: int, end: int) -> None:
        self._data.append(data[start:end])

    def _end(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"")
        if not 0 < len(name) <= MAX_NAME_BYTES:
            raise InvalidArgument.of("body", f"must name each part, with at most {MAX_NAME_BYTES} bytes")
        part = FormPart(name.decode(errors="replace"), b"".join(self._data), b"filename" in options)
        self.parts.append(part)

    def _end_all(self) -> None:
        self.ended = True
