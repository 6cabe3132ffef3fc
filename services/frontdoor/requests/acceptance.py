"""Track whether new requests can be accepted at all, and count rejected ones by reason."""

from collections import Counter

from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.errors import PentimentoError
from pentimento.stores.errors import StoreFull, StoreUnavailable
from services.frontdoor.metrics import REQUESTS

# Seconds after a failed write to the journal during which new requests count as blocked. The journal's lease may renew
# although a whole row cannot be written.
RETRY_S = 5.0


class Acceptance:
    """Track acceptance on one event loop. `blocked` is the reason why no request would be accepted now, "" if some
    would."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.rejections: Counter[str] = Counter()
        self._clock = clock or SystemClock()
        self._disk: PentimentoError | None = None
        self._beat: PentimentoError | None = None
        self._journal: tuple[PentimentoError, float] | None = None

    @property
    def rejected_count(self) -> int:
        """Return how many requests were rejected since the start."""
        return self.rejections.total()

    def reject(self, reason: str, count: int = 1) -> None:
        """Count rejected requests under their reason."""
        REQUESTS.labels("rejected").inc(count)
        self.rejections[reason] += count

    def fail(self, error: PentimentoError) -> None:
        """Note that the journal could not be read or written for a request, and reject it."""
        self.reject(error.reason)
        if isinstance(error, StoreFull | StoreUnavailable):
            self._journal = error, self._clock.monotonic() + RETRY_S

    def accept(self) -> None:
        """Note that the journal accepted a request."""
        self._journal = None

    def hear_beat(self, error: PentimentoError | None) -> None:
        """Note the outcome of the last renewal of the journal's lease."""
        self._beat = error

    def see_disk(self, error: PentimentoError | None) -> None:
        """Note whether the disks have their minimum of free space."""
        self._disk = error

    @property
    def blocked(self) -> str:
        """Return the reason and its sentence, "" if requests can be accepted."""
        failed = self._journal[0] if self._journal is not None and self._clock.monotonic() < self._journal[1] else None
        error = self._disk or self._beat or failed
        return f"{error.reason}: {error.message}" if error is not None else ""
