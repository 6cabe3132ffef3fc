"""Report this replica's free capacity to its watchers: on each change, and every second."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

BEAT_S = 1.0


class CreditNews:
    """Wake watchers. On the event loop only."""

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
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BEAT_S):
                        await news.wait()
                news.clear()
        finally:
            self._watchers.discard(news)
