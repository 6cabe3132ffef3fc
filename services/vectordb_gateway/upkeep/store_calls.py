"""Calls of stores that may hang: threads that abandon them, and the watch that reports them."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from pentimento.rpc.process import started_pool
from pentimento.stores.errors import StoreUnavailable
from services.vectordb_gateway import metrics

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# A read takes microseconds, a search milliseconds: who takes this long is stuck, and others would only wait behind.
_STUCK_S = 1.0
_LOOK_S = 0.5
# Above what a locked database is waited for, and what a batch of writes takes on a slow disk.
_HANGS_S = 6.0


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
        """Return the result of the call. Raises StoreUnavailable at once while an earlier one is stuck; a cancelled
        caller leaves the thread to the call."""
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


@dataclass(frozen=True)
class WatchedStore:
    """`stuck_s` gives the seconds that its oldest call has been waited for; above `hangs_s` it hangs. `serves` where
    nothing can be looked up or added without it."""

    stuck_s: Callable[[], float]
    hangs_s: float = _HANGS_S
    serves: bool = True


class StallWatch:
    """Watches the age of each store's oldest call. While a store that lookups need hangs, the process is NOT_SERVING;
    it answers all the same, lookups with misses."""

    def __init__(self, stores: Mapping[str, WatchedStore], set_serving: Callable[[bool], None]) -> None:
        self._stores = stores
        self._set_serving = set_serving
        self._hanging: frozenset[str] = frozenset()
        self._serves = True

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def look(self) -> None:
        """Changes state: publish the present ages, and log every change."""
        hanging = frozenset(name for name, store in self._stores.items() if self._waited_s(name, store) > store.hangs_s)
        for name in sorted(hanging - self._hanging):
            logger.error("%s hangs; its calls are abandoned until it answers", name)
        for name in sorted(self._hanging - hanging):
            logger.info("%s answers again", name)
        self._hanging = hanging
        serves = not any(self._stores[name].serves for name in hanging)
        if serves != self._serves:
            self._serves = serves
            self._set_serving(serves)

    def _waited_s(self, name: str, store: WatchedStore) -> float:
        waited_s = store.stuck_s()
        metrics.STUCK_SECONDS.labels(name).set(waited_s)
        return waited_s
