"""Report a replica's free capacity and busy share: on each change, and every second."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

HEARTBEAT_S = 1.0


class CreditNews:
    """Wake the watchers of a replica's credits. On the event loop only."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Event] = set()

    def changed(self) -> None:
        """Wake every watcher."""
        for watcher in self._watchers:
            watcher.set()

    async def beats(self) -> AsyncGenerator[None, None]:
        """Yield immediately, then on every change and at least once a second."""
        news = asyncio.Event()
        self._watchers.add(news)
        try:
            while True:
                yield
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await news.wait()
                news.clear()
        finally:
            self._watchers.discard(news)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds` is true, which is checked at every beat."""
        async with aclosing(self.beats()) as beats:
            async for _ in beats:
                if holds():
                    return


class BusyMeter:
    """Add up the device's busy seconds. `add` runs on the computing thread, `share` on the event loop: a float is
    replaced whole."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._busy_s = 0.0
        self._asked_busy_s = 0.0
        self._asked_at = monotonic()

    def add(self, seconds: float) -> None:
        """Count seconds of the device's computation."""
        self._busy_s += seconds

    def share(self) -> float:
        """Return the busy share since the last call, 0..1."""
        now, busy_s = self._monotonic(), self._busy_s
        elapsed, busy = now - self._asked_at, busy_s - self._asked_busy_s
        self._asked_at, self._asked_busy_s = now, busy_s
        return min(busy / elapsed, 1.0) if elapsed > 0 else 0.0
