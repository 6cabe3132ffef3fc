"""Says when a store hangs: in a gauge, in the log once, and in the health of the process."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.vectordb_gateway import metrics

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
# Above what a locked database is waited for, and what a batch of writes takes on a slow disk.
_HANGS_S = 6.0


@dataclass(frozen=True)
class WatchedStore:
    """`stuck_s` gives the seconds that its oldest call has been waited for; above `hangs_s` it hangs. `serves` where
    nothing can be looked up or added without it."""

    stuck_s: Callable[[], float]
    hangs_s: float = _HANGS_S
    serves: bool = True


class StallWatch:
    """Looks at how long each store has been keeping somebody waiting. While one that lookups need hangs, the process
    says NOT_SERVING; it answers all the same, lookups with misses."""

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
        """Changes state: publish what is seen now, and say what changed."""
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
