"""Track the frontdoors that are served: the start of the newest epoch of each, regardless of its journal, and the
credits that each is offered, fairly where several have requests."""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

from pentimento.domain.clock import Clock, latest_believable
from pentimento.domain.errors import Aborted, InvalidArgument
from pentimento.domain.reasons import Reason
from pentimento.policies.credit_shares import ServedWork, credits_of
from pentimento.policies.step_batching import ON_ITS_WAY_S
from services.unet_worker import metrics

logger = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")


REMEMBERED = 4096


def remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    """Store the key as the newest one, and remove the oldest ones beyond the bound."""
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > REMEMBERED:
        memory.popitem(last=False)


class KnownFrontdoors:
    """Remember the newest epoch of each frontdoor id, and its journal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._newest: OrderedDict[str, tuple[int, str]] = OrderedDict()
        # The last rejected start of each.
        self._refused: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def meet(self, frontdoor_id: str, epoch: int, journal_id: str) -> bool:
        """Record a frontdoor's epoch and return whether it is new. `journal_id` is "" for a frontdoor without one.

        Raises InvalidArgument for an epoch that is too far in the future, Aborted for one that is not the newest.
        """
        latest = latest_believable(self._clock.wall())
        if epoch > latest:
            limit = f"must be at most {latest}, a year ahead of this worker's clock in milliseconds, got {epoch}"
            raise InvalidArgument.of("frontdoor_epoch", limit)
        newest, newest_journal = self._newest.get(frontdoor_id, (-1, ""))
        other_journal = bool(journal_id and newest_journal and journal_id != newest_journal)
        if epoch < newest or (epoch == newest and other_journal):
            self._tell(frontdoor_id, epoch, journal_id, newest)
            raise _stale(epoch, newest, other_journal)
        remember(self._newest, frontdoor_id, (epoch, journal_id or (newest_journal if epoch == newest else "")))
        return epoch > newest

    def _tell(self, frontdoor_id: str, epoch: int, journal_id: str, newest: int) -> None:
        """Count each rejection; log a frontdoor once, not each of its tries."""
        metrics.STALE_EPOCHS.inc()
        if self._refused.get(frontdoor_id) != (epoch, journal_id):
            remember(self._refused, frontdoor_id, (epoch, journal_id))
            fields = {"frontdoor": frontdoor_id, "epoch": epoch, "newest_epoch": newest}
            logger.warning("a frontdoor with an older epoch is rejected", extra=fields)


def _stale(epoch: int, newest: int, other_journal: bool) -> Aborted:
    whose = "with another journal " if other_journal else ""
    message = f"epoch {newest} of this frontdoor {whose}has taken over, got {epoch}"
    metadata = {"newest_epoch": str(newest), "other_journal": str(other_journal).lower()}
    return Aborted(Reason.STALE_EPOCH, message, metadata=metadata)


# A frontdoor that leaves a credit unused for this long has no requests; a shorter time would include a slow journal.
# Whenever it runs out of requests, its share is idle for this time.
UNUSED_S = 5 * ON_ITS_WAY_S


class Cancellable(Protocol):
    """A call that is due later."""

    def cancel(self) -> None: ...


class Later(Protocol):
    """Schedule calls, as an event loop or virtual time does."""

    def __call__(self, delay_s: float, call: Callable[[str], None], frontdoor: str, /) -> Cancellable: ...


def on_loop(delay_s: float, call: Callable[[str], None], frontdoor: str) -> Cancellable:
    """Schedule a call on the running event loop."""
    return asyncio.get_running_loop().call_later(delay_s, call, frontdoor)


class FairCredits:
    """Track which frontdoors are awaited (see `credit_shares`). On the event loop only. `changed` is called when the
    credits of other frontdoors grow because one has no requests."""

    def __init__(self, changed: Callable[[], None], later: Later = on_loop) -> None:
        self._changed = changed
        self._later = later
        self._watching: Counter[str] = Counter()
        self._served = ServedWork()
        # Frontdoors that are awaited; with a timer while an offered credit is unused.
        self._awaited: dict[str, Cancellable | None] = {}

    @contextmanager
    def watching(self, frontdoor: str) -> Iterator[None]:
        """Count a stream of the frontdoor's credits while it is open; changes state."""
        self._watching[frontdoor] += 1
        try:
            yield
        finally:
            self._watching[frontdoor] -= 1
            if not self._watching[frontdoor]:
                del self._watching[frontdoor]
                self._served.forget(frontdoor)
                self._lapse(frontdoor)

    def has_rivals(self, frontdoor: str) -> bool:
        return any(name != frontdoor for name in self._awaited)

    def reserve(self, frontdoor: str, reserve_count: int) -> int:
        """Return the reserve that the frontdoor is offered: none among several, which would exceed its share."""
        return 0 if self.has_rivals(frontdoor) else reserve_count

    def allowed(self, frontdoor: str, credit_count: int, held: Mapping[str, int]) -> int:
        """Return the attempts that the frontdoor may hold, of `credit_count`."""
        return credits_of(frontdoor, credit_count, held, self._served.work, self._awaited.keys())

    def offered(self, frontdoor: str, credit_count: int, held: Mapping[str, int]) -> int:
        """Return as `allowed`, for a message to the frontdoor; changes state: a credit that stays unused shows that it
        has no requests."""
        allowed = self.allowed(frontdoor, credit_count, held)
        if frontdoor in self._awaited:
            self._time(frontdoor, is_unused=allowed > held.get(frontdoor, 0) and self.has_rivals(frontdoor))
        return allowed

    def admit(self, frontdoor: str, work: float) -> None:
        """Record an attempt; changes state. `work` is in any unit."""
        if frontdoor not in self._watching:
            return
        self._served.add(frontdoor, work, self._awaited.keys())
        self._time(frontdoor, is_unused=False)

    def _time(self, frontdoor: str, *, is_unused: bool) -> None:
        timer = self._awaited.get(frontdoor)
        if timer is not None and not is_unused:
            timer.cancel()
            timer = None
        elif timer is None and is_unused:
            timer = self._later(UNUSED_S, self._lapse, frontdoor)
        self._awaited[frontdoor] = timer

    def _lapse(self, frontdoor: str) -> None:
        timer = self._awaited.pop(frontdoor, None)
        if timer is not None:
            timer.cancel()
        self._changed()
