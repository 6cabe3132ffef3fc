"""Limit the open calls about one request: each receives every event of it, at a cost for all clients."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from pentimento.domain.errors import ResourceExhausted
from services.frontdoor.metrics import REQUESTS

RETRY_MS = 1000
# Open calls with one idempotency key, or attached to one request.
MAX_OPEN_CALLS = 4


@dataclass(frozen=True)
class KeyedCall:
    """Hold an idempotency key, the digest of its body, and the id of the request that has the key in the journal.
    `hand_over_count`: see `CellGate.check_new`."""

    idempotency_key: str = ""
    body_hash: str = ""
    request_id: str = ""
    hand_over_count: int | None = None


NO_KEY = KeyedCall()


class Callers:
    """Count open calls by tenant and by the name they share: an idempotency key, or a request to attach to."""

    def __init__(self) -> None:
        self._open: Counter[tuple[str, str, str]] = Counter()

    @contextmanager
    def calling(self, tenant: str, named: str, field: str = "idempotency_key") -> Iterator[None]:
        """Count a call while it is open; changes state. Raises ResourceExhausted if too many calls with the same
        `named` in this field are open. Calls without a name are not limited."""
        if not named:
            yield
            return
        key = (tenant, field, named)
        if self._open[key] >= MAX_OPEN_CALLS:
            REQUESTS.labels("rejected").inc()
            message = f"{field}: at most {MAX_OPEN_CALLS} calls with the same one may be open at once"
            raise ResourceExhausted("TOO_MANY_LISTENERS", message, retry_after_ms=RETRY_MS)
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


class HeldKeys:
    """Serialize the calls of a key, as several reads of the journal are needed to find its requests."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._users: Counter[tuple[str, str]] = Counter()

    @asynccontextmanager
    async def held(self, tenant: str, idempotency_key: str) -> AsyncIterator[None]:
        """Hold the key during an arrival; changes state. Calls without a key do not wait."""
        if not idempotency_key:
            yield
            return
        key = (tenant, idempotency_key)
        self._users[key] += 1
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]
