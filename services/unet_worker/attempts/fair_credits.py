"""Offer the worker's credits to the frontdoors that watch them, fairly where several have requests."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from pentimento.policies.credit_shares import ServedWork, credits_of
from pentimento.policies.step_batching import ON_ITS_WAY_S

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
