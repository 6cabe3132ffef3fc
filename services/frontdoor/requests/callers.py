"""How many calls about one request are open at once: each hears every word of it, at everybody's cost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from pentimento.domain.errors import ResourceExhausted
from services.frontdoor.metrics import REQUESTS

RETRY_MS = 1000


@dataclass(frozen=True)
class KeyedCall:
    """An idempotency key, the digest of what it came with, and the request that has it in the journal already."""

    idempotency_key: str = ""
    body_hash: str = ""
    request_id: str = ""


NO_KEY = KeyedCall()


class Callers:
    """Counts open calls by tenant, and by what they name: an idempotency key, or a request to attach to."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[tuple[str, str, str]] = Counter()

    @contextmanager
    def calling(self, tenant: str, named: str, field: str = "idempotency_key") -> Iterator[None]:
        """Around a call that names that in this field; changes state. Raises ResourceExhausted where too many are open.
        Calls that name nothing are nobody's business but their own."""
        if not named:
            yield
            return
        key = (tenant, field, named)
        if self._open[key] >= self._limit:
            REQUESTS.labels("rejected").inc()
            message = f"{field}: at most {self._limit} calls with the same one may be open at once"
            raise ResourceExhausted("TOO_MANY_LISTENERS", message, retry_after_ms=RETRY_MS)
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


class HeldKeys:
    """Lets one call of a key after the other arrive, where it takes more than one look at the journal to know what is
    there."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._users: Counter[tuple[str, str]] = Counter()

    @asynccontextmanager
    async def held(self, tenant: str, idempotency_key: str) -> AsyncIterator[None]:
        """Around an arrival; changes state. Calls without a key wait for nobody."""
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
