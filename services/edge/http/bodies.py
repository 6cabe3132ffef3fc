"""Read bodies of requests within bounds."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from pentimento.domain.errors import Cancelled, InvalidArgument, ResourceExhausted, Unavailable
from pentimento.domain.reasons import Reason
from services.edge.metrics import BODIES

RETRY_AFTER_MS = 1000


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
        self.size_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Count a chunk. ResourceExhausted MESSAGE_TOO_LARGE above the limit of a body."""
        if self.size_bytes + len(chunk) > self._budget.max_body_bytes:
            raise too_large(self._budget.max_body_bytes)
        self._budget.grow(self._caller, len(chunk))
        self.size_bytes += len(chunk)


async def read_body(request: Request, held: HeldBody, max_body_bytes: int) -> bytes:
    """Return the whole body. A too large Content-Length is rejected before reading."""
    check_declared_size(request, max_body_bytes)
    check_encoding(request)
    chunks = []
    try:
        async for chunk in request.stream():
            held.add(chunk)
            chunks.append(chunk)
    except ClientDisconnect:
        raise Cancelled("CLIENT_LEFT", "the client disconnected before the end of its request") from None
    return b"".join(chunks)


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
