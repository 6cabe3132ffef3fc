"""Report a replica's free capacity and busy share, on each change and every second, and how late its event loop is."""

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


LAG_INTERVAL_S = 0.05


class LoopLagProbe:
    """Observe the lag in seconds, once every LAG_INTERVAL_S, until it is closed; on the loop that it measures."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._probe(), name="loop-lag")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _probe(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._observe(max(loop.time() - due, 0.0))
