"""Threads for calls to a store that may hang: a call is abandoned by who waits for it, and goes on in its thread."""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pentimento.rpc.thread_pools import started_pool
from pentimento.stores.errors import StoreUnavailable

P = ParamSpec("P")
T = TypeVar("T")

# A read takes microseconds, a search milliseconds: who takes this long is stuck, and others would only wait behind.
_STUCK_S = 1.0


class StoreThreads:
    """A pool that takes nothing more while its oldest call is stuck, so that calls cannot pile up behind it."""

    def __init__(self, thread_count: int, name: str) -> None:
        self._threads = started_pool(thread_count, name)
        self._name = name
        self._numbers = itertools.count()
        # When each call that runs began, oldest first.
        self._began: dict[int, float] = {}

    @property
    def stuck_s(self) -> float:
        """Return for how many seconds the oldest call has been running."""
        oldest = next(iter(self._began.copy().values()), None)
        return 0.0 if oldest is None else time.monotonic() - oldest

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the call does. Raises StoreUnavailable at once while an earlier one is stuck; a caller who is
        cancelled leaves the thread to the call."""
        if (stuck_s := self.stuck_s) > _STUCK_S:
            raise StoreUnavailable(self._name, f"a call has not returned for {stuck_s:.0f} s")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: self._timed(call, *args, **kwargs))

    def submit(self, work: Callable[[], None]) -> None:
        """Run the work in a thread some time. Raises RuntimeError once closed."""
        self._threads.submit(self._timed, work)

    def close(self) -> None:
        """Let go of the threads; a call that runs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _timed(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        number = next(self._numbers)
        self._began[number] = time.monotonic()
        try:
            return call(*args, **kwargs)
        finally:
            del self._began[number]
