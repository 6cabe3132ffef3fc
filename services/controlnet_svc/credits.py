"""What this replica can take, told to whoever watches: on each change, and every second."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

BEAT_S = 1.0


class CreditNews:
    """Wakes watchers. On the event loop only."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Event] = set()

    def changed(self) -> None:
        """Wake everybody who watches."""
        for watcher in self._watchers:
            watcher.set()

    async def beats(self) -> AsyncGenerator[None, None]:
        """Yield at once, then on every change and at least once a second."""
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
