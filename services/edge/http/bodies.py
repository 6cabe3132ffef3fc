"""Read bodies of requests within bounds: bytes, JSON, and multipart forms as they arrive, in memory."""

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from pentimento.domain.errors import Cancelled, InvalidArgument, ResourceExhausted, Unavailable
from pentimento.domain.reasons import Reason
from services.edge.metrics import BODIES

RETRY_AFTER_MS = 1000
# Commas bound the number of values without parsing; prompts may have some too. Five million values in a body of 16 MiB
# would block the process for two seconds and take 500 MiB.
MOST_COMMAS = 100_000
MAX_SHOWN_CHARS = 40
MAX_PARTS = 64
MAX_NAME_BYTES = 128
MAX_BOUNDARY_BYTES = 70
MAX_PART_HEADERS = 8
MAX_PART_HEADER_BYTES = 1024
FORM_TYPE = "multipart/form-data"

# It warns of each malformed form: clients could fill the log.
logging.getLogger("python_multipart").setLevel(logging.ERROR)


def too_large(limit_bytes: int) -> ResourceExhausted:
    """Return the error of a body above the limit."""
    return ResourceExhausted(Reason.MESSAGE_TOO_LARGE, f"the body must have at most {limit_bytes} bytes")


class BodyBudget:
    """Bound the bytes of all bodies in memory, and one caller's to half of that. Leaving the block of `held` frees its
    bytes."""

    def __init__(self, max_body_bytes: int, max_bodies_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._max_bodies_bytes = max_bodies_bytes
        self._share_bytes = max(max_bodies_bytes // 2, max_body_bytes)
        self._held: Counter[str] = Counter()

    @contextmanager
    def held(self, caller: str) -> Iterator["HeldBody"]:
        """Count a caller's body until the block is left."""
        body = HeldBody(self, caller)
        try:
            yield body
        finally:
            self._held -= Counter({caller: body.size_bytes})
            BODIES.set(self._held.total())

    def grow(self, caller: str, by_bytes: int) -> None:
        """Count further bytes. Unavailable BODIES_FULL above the limit of all callers or of this one."""
        is_full = self._held.total() + by_bytes > self._max_bodies_bytes
        if is_full or self._held[caller] + by_bytes > self._share_bytes:
            scope = "" if is_full else " of one caller"
            raise Unavailable(
                "BODIES_FULL", f"too many large requests{scope} at the same time", retry_after_ms=RETRY_AFTER_MS
            )
        self._held[caller] += by_bytes
        BODIES.set(self._held.total())


class HeldBody:
    """A body that is being read."""

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget = budget
        self._caller = caller
        self.max_bytes = budget.max_body_bytes
        self.size_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Count a chunk. ResourceExhausted MESSAGE_TOO_LARGE above the limit of a body."""
        if self.size_bytes + len(chunk) > self.max_bytes:
            raise too_large(self.max_bytes)
        self._budget.grow(self._caller, len(chunk))
        self.size_bytes += len(chunk)


async def chunks_of(request: Request, held: HeldBody) -> AsyncIterator[bytes]:
    """Yield a body as it arrives. A too large Content-Length is rejected before reading."""
    check_declared_size(request, held.max_bytes)
    check_encoding(request)
    try:
        async for chunk in request.stream():
            held.add(chunk)
            yield chunk
    except ClientDisconnect:
        raise Cancelled("CLIENT_LEFT", "the client disconnected before the end of its request") from None


async def read_body(request: Request, held: HeldBody) -> bytes:
    """Return the whole body."""
    return b"".join([chunk async for chunk in chunks_of(request, held)])


def check_declared_size(request: Request, max_body_bytes: int) -> None:
    """Raise for a Content-Length above the limit."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal():
        raise InvalidArgument.of("Content-Length", "must be a number of bytes")
    if len(declared) > 18 or int(declared) > max_body_bytes:
        raise too_large(max_body_bytes)


def check_encoding(request: Request) -> None:
    """Raise for a compressed body: the edge decompresses nothing, so that no small body becomes a large one."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise InvalidArgument.of("Content-Encoding", "must be identity: compressed bodies are not accepted")
    if ",".join(request.headers.getlist("transfer-encoding")).strip().lower() not in ("", "chunked"):
        raise InvalidArgument.of("Transfer-Encoding", "must be only chunked: compressed bodies are not accepted")


def read_json(body: bytes) -> dict[str, Any]:
    """Parse a body as a JSON object. InvalidArgument for anything else."""
    if body.count(b",") > MOST_COMMAS:
        raise InvalidArgument.of("body", f"must have at most {MOST_COMMAS} values")
    try:
        document = json_of(body)
    except (ValueError, RecursionError):
        raise InvalidArgument.of("body", "must be a JSON object in UTF-8") from None
    if not isinstance(document, dict):
        raise InvalidArgument.of("body", "must be a JSON object")
    return document


def json_of(text: str | bytes) -> Any:
    """Parse a JSON text; bytes are UTF-8. ValueError for invalid JSON or too many values, RecursionError if nested too
    deep, InvalidArgument for a repeated name."""
    if (text.count(",") if isinstance(text, str) else text.count(b",")) > MOST_COMMAS:
        raise ValueError("too many values")
    # The parser itself would also decode UTF-16 and UTF-32. RFC 8259 allows to ignore a byte order mark.
    whole = text if isinstance(text, str) else text.decode("utf-8-sig")
    return json.loads(whole, parse_constant=no_constant, object_pairs_hook=object_of)


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. InvalidArgument for a repeated name: a proxy that validated the text may have used the other
    value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise InvalidArgument.of(shown(counts.most_common(1)[0][0]), "must occur once")
    return found


def no_constant(name: str) -> Any:
    """Reject NaN and the infinities, which are not JSON."""
    raise ValueError(name)


def shown(text: str) -> str:
    """Return a client's text in a form that is safe to show in an error."""
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_SHOWN_CHARS]) or "''"


@dataclass(frozen=True)
class FormPart:
    """A part of a form. `is_file`: it has a file name, which is not stored."""

    name: str
    data: bytes
    is_file: bool


def text_of(part: FormPart) -> str:
    """Return the text of a part. InvalidArgument for a file, and for bytes that are no UTF-8."""
    if part.is_file:
        raise InvalidArgument.of(shown(part.name), "must be a text, not a file")
    try:
        return part.data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument.of(shown(part.name), "must be text in UTF-8") from None


async def read_form(request: Request, held: HeldBody) -> list[FormPart]:
    """Return the parts. InvalidArgument for a malformed form, too many parts or a part without a name."""
    collector = PartCollector()
    parser = collector.parser(boundary_of(request))
    try:
        async for chunk in chunks_of(request, held):
            parser.write(chunk)
        parser.finalize()
    except FormParserError:
        raise malformed() from None
    if not collector.ended:
        raise malformed()
    return collector.parts


def boundary_of(request: Request) -> bytes:
    """Return the boundary of the parts."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != FORM_TYPE.encode() or not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise InvalidArgument.of("Content-Type", "must be multipart/form-data with a boundary of 1 to 70 characters")
    return boundary


def malformed() -> InvalidArgument:
    return InvalidArgument.of("body", "must be a whole multipart/form-data body")


class PartCollector:
    """Collect the parts; the parser calls the methods named `on_…`."""

    def __init__(self) -> None:
        self.parts: list[FormPart] = []
        self.ended = False
        self._header_name = b""
        self._header_value = b""
        self._disposition = b""
        self._data: list[bytes] = []

    def parser(self, boundary: bytes) -> MultipartParser:
        """Return a parser that calls this collector."""
        callbacks: dict[str, Any] = {name: getattr(self, name) for name in dir(self) if name.startswith("on_")}
        return MultipartParser(
            boundary,
            callbacks,  # type: ignore[arg-type]
            max_header_count=MAX_PART_HEADERS,
            max_header_size=MAX_PART_HEADER_BYTES,
        )

    def on_part_begin(self) -> None:
        if len(self.parts) >= MAX_PARTS:
            raise InvalidArgument.of("body", f"must have at most {MAX_PARTS} parts")
        self._disposition, self._data = b"", []

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def on_header_end(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header_name = self._header_value = b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._data.append(data[start:end])

    def on_part_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"")
        if not 0 < len(name) <= MAX_NAME_BYTES:
            raise InvalidArgument.of("body", f"must name each part, with at most {MAX_NAME_BYTES} bytes")
        part = FormPart(name.decode(errors="replace"), b"".join(self._data), b"filename" in options)
        self.parts.append(part)

    def on_end(self) -> None:
        self.ended = True
