"""How many calls of one idempotency key are open at once: each hears every word of the request, at everybody's cost."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pentimento.domain.errors import ResourceExhausted
from services.frontdoor.metrics import REQUESTS

RETRY_MS = 1000


class Callers:
    """Counts open calls by tenant and key."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def calling(self, tenant: str, idempotency_key: str) -> Iterator[None]:
        """Around a call; changes state. Raises ResourceExhausted where too many are open. Calls without a key are
        nobody's business but their own."""
        if not idempotency_key:
            yield
            return
        key = (tenant, idempotency_key)
        if self._open[key] >= self._limit:
            REQUESTS.labels("rejected").inc()
            message = f"idempotency_key: at most {self._limit} calls with one key may be open at once"
            raise ResourceExhausted("TOO_MANY_LISTENERS", message, retry_after_ms=RETRY_MS)
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]
