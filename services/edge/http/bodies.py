"""Bodies of requests, read whole within bounds."""

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
    """Bytes of bodies that are held at once, half of them at most for one caller. `take` and give back by leaving the
    block."""

    def __init__(self, max_body_bytes: int, max_bodies_bytes: int) -> None:
        self.max_body_bytes = max_body_bytes
        self._max_bodies_bytes = max_bodies_bytes
        self._share_bytes = max(max_bodies_bytes // 2, max_body_bytes)
        self._held: Counter[str] = Counter()

    @contextmanager
    def held(self, caller: str) -> Iterator["HeldBody"]:
        """Count a caller's body from its first byte until the block is left."""
        body = HeldBody(self, caller)
        try:
            yield body
        finally:
            self._held -= Counter({caller: body.size_bytes})
            BODIES.set(self._held.total())

    def grow(self, caller: str, by_bytes: int) -> None:
        """Unavailable BODIES_FULL where that would be too much, of all callers or of this one."""
        is_full = self._held.total() + by_bytes > self._max_bodies_bytes
        if is_full or self._held[caller] + by_bytes > self._share_bytes:
            whose = "" if is_full else " of one caller"
            raise Unavailable("BODIES_FULL", f"too many large requests{whose} at once", retry_after_ms=RETRY_AFTER_MS)
        self._held[caller] += by_bytes
        BODIES.set(self._held.total())


class HeldBody:
    """One body as it grows."""

    def __init__(self, budget: BodyBudget, caller: str) -> None:
        self._budget = budget
        self._caller = caller
        self.size_bytes = 0

    def add(self, chunk: bytes) -> None:
        """Count a chunk. ResourceExhausted MESSAGE_TOO_LARGE beyond the limit of a body."""
        if self.size_bytes + len(chunk) > self._budget.max_body_bytes:
            raise too_large(self._budget.max_body_bytes)
        self._budget.grow(self._caller, len(chunk))
        self.size_bytes += len(chunk)


async def read_body(request: Request, held: HeldBody, max_body_bytes: int) -> bytes:
    """Return the whole body. What says of itself that it is too large is refused before it is read."""
    check_declared_size(request, max_body_bytes)
    check_encoding(request)
    chunks = []
    try:
        async for chunk in request.stream():
            held.add(chunk)
            chunks.append(chunk)
    except ClientDisconnect:
        raise Cancelled("CLIENT_LEFT", "the client left before its request was there") from None
    return b"".join(chunks)


def check_declared_size(request: Request, max_body_bytes: int) -> None:
    """Raise for a Content-Length above the limit."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal():
        raise InvalidArgument.of("Content-Length", "must be a number of bytes")
    if len(declared) > 18 or int(declared) > max_body_bytes:
        raise too_large(max_body_bytes)


def check_encoding(request: Request) -> None:
    """Raise for a body that is compressed: nothing is unpacked here, so that nothing grows."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise InvalidArgument.of("Content-Encoding", "must be identity: no compressed body is taken")
    if ",".join(request.headers.getlist("transfer-encoding")).strip().lower() not in ("", "chunked"):
        raise InvalidArgument.of("Transfer-Encoding", "must be chunked only: compressed bodies are not accepted")
