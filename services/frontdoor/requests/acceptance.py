"""Tracks whether new requests can be accepted at all, and counts rejected ones by reason."""

from collections import Counter

from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.errors import PentimentoError
from pentimento.stores.errors import StoreFull, StoreUnavailable
from services.frontdoor.metrics import REQUESTS

# Seconds after a failed write to the journal during which new requests count as blocked. Beats of its lease may go
# through where a whole row does not.
RETRY_S = 5.0


class Acceptance:
    """Belongs to one event loop. `blocked` is why no request would be accepted now, "" where some would."""

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
        """Changes state: count rejected requests under their reason."""
        REQUESTS.labels("rejected").inc(count)
        self.rejections[reason] += count

    def fail(self, error: PentimentoError) -> None:
        """Changes state: the journal could not be read or written for a request, which was rejected."""
        self.reject(error.reason)
        if isinstance(error, StoreFull | StoreUnavailable):
            self._journal = error, self._clock.monotonic() + RETRY_S

    def accept(self) -> None:
        """Changes state: the journal took a request."""
        self._journal = None

    def hear_beat(self, error: PentimentoError | None) -> None:
        """Changes state: what came of the last beat of the journal's lease."""
        self._beat = error

    def see_disk(self, error: PentimentoError | None) -> None:
        """Changes state: whether the disks have the room that is to be left on them."""
        self._disk = error

    @property
    def blocked(self) -> str:
        """Return the reason and its sentence."""
        failed = self._journal[0] if self._journal is not None and self._clock.monotonic() < self._journal[1] else None
        error = self._disk or self._beat or failed
        return f"{error.reason}: {error.message}" if error is not None else ""
