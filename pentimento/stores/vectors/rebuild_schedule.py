"""Schedule builds of the embedded index: a thread waits until a build is due, runs it, and tries again later."""

import logging
import threading
from collections.abc import Callable

from pentimento.domain.errors import PentimentoError
from pentimento.stores.vectors.index_building import IndexBuilding, build_is_due, retry_delay_s
from pentimento.stores.vectors.rebuild import Rebuild
from pentimento.stores.vectors.serving_shard import ServingShard

logger = logging.getLogger(__name__)


class RebuildSchedule:
    """Run one build at a time, whenever `build_is_due`. A failed one is logged and tried again, with growing delays."""

    def __init__(
        self,
        serving: ServingShard,
        building: IndexBuilding,
        new_rebuild: Callable[[], Rebuild],
    ) -> None:
        self._serving = serving
        self._building = building
        self._new_rebuild = new_rebuild
        self._due = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._running: Rebuild | None = None
        self._thread = threading.Thread(target=self._run, name="index-rebuild", daemon=True)
        self.builds_count = 0
        self.failures_count = 0
        self._failures_in_a_row = 0

    def start(self) -> None:
        """Build from here on, in the background, whenever it is due."""
        self._thread.start()
        self.look()

    def look(self) -> None:
        """Begin a build soon if one is due."""
        if build_is_due(self._serving.counts, self._building):
            self._due.set()

    def close(self) -> None:
        """Stop, and end any build."""
        self._closing.set()
        self._due.set()
        with self._lock:
            if self._running is not None:
                self._running.stop()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._due.wait()
            self._due.clear()
            if self._closing.is_set():
                return
            self._closing.wait(retry_delay_s(self._failures_in_a_row, self._building))
            # The build also holds the changes that were due while it ran.
            if not self._closing.is_set() and build_is_due(self._serving.counts, self._building):
                self._build()
                self.look()

    def _build(self) -> None:
        rebuild = self._new_rebuild()
        with self._lock:
            # `close` has stopped the running build already, and waits for the thread.
            if self._closing.is_set():
                return
            self._running = rebuild
        try:
            rebuild.run()
        except (PentimentoError, OSError) as error:
            self._failed(error)
        else:
            self.builds_count += 1
            self._failures_in_a_row = 0
            logger.info("the index was rebuilt: %d points", self._serving.counts.points_count)
        finally:
            with self._lock:
                self._running = None

    def _failed(self, error: Exception) -> None:
        if self._closing.is_set():
            return
        self.failures_count += 1
        self._failures_in_a_row += 1
        delay_s = retry_delay_s(self._failures_in_a_row, self._building)
        logger.warning("the index was not rebuilt, the old one is used; next try in %.0f s: %s", delay_s, error)
