"""Report the worker's free capacity to every watching frontdoor: on each change, and every second."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from pentimento.domain.execution import WorkerCredits

HEARTBEAT_S = 1.0


class CapacityFeed:
    """Publish the worker's credits; on the event loop only. `snapshot` is called for every message."""

    def __init__(self, snapshot: Callable[[], WorkerCredits]) -> None:
        self._snapshot = snapshot
        self._watchers: set[asyncio.Event] = set()

    def changed(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds` is true, which is checked on every change and at least once a second."""
        news = asyncio.Event()
        self._watchers.add(news)
        try:
            while not holds():
                await _wait_or_beat(news)
                news.clear()
        finally:
            self._watchers.discard(news)

    async def watch(self, check: Callable[[], None]) -> AsyncGenerator[WorkerCredits, None]:
        """Yield the credits now, then on every change and at least once a second. `check` runs before each message; its
        errors end the stream. Adapters are sent only if they differ from the last sent ones: they may be many."""
        news = asyncio.Event()
        self._watchers.add(news)
        told: tuple[object, ...] = ()
        try:
            while True:
                check()
                credits = self._snapshot()
                known = (credits.known_adapters, credits.rejected_adapters)
                yield credits if known != told else replace(credits, known_adapters=None, rejected_adapters=())
                told = known
                await _wait_or_beat(news)
                news.clear()
        finally:
            self._watchers.discard(news)


async def _wait_or_beat(news: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            await news.wait()
    except TimeoutError:
        pass
