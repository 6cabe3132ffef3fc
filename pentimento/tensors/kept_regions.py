"""Keep regions of ended streams for the next stream between the same two processes: making and mapping a region, with
zeroing and page faults, costs as much as a few steps."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # regions keep those of their directory here
    from pentimento.tensors.regions import RegionSize, SharedRegion

# Seconds without a stream after which a region's memory is released.
KEEP_S = 30.0
MOST_BYTES = 512 << 20
# Largest number of regions that one end looks up for the other.
MOST_OFFERED = 16


class KeptRegions:
    """Hold the unused regions of one process, newest last. Any thread may use it."""

    def __init__(
        self, keep_s: float = KEEP_S, most_bytes: int = MOST_BYTES, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep_s = keep_s
        self._most_bytes = most_bytes
        self._monotonic = monotonic
        self._held = threading.Lock()
        self._kept: dict[str, tuple[SharedRegion, float]] = {}
        self._timer: threading.Timer | None = None

    @property
    def region_ids(self) -> list[str]:
        """Return the ids of the newest regions, at most MOST_OFFERED."""
        return list(self._kept)[-MOST_OFFERED:]

    def take(self, region_ids: Sequence[str], size: "RegionSize") -> "SharedRegion | None":
        """Remove and return the first region of `region_ids` that is held and has that size; None if there is none."""
        with self._held:
            for region_id in region_ids[:MOST_OFFERED]:
                region, _ = self._kept.get(region_id, (None, 0.0))
                if region is not None and region.size == size:
                    del self._kept[region_id]
                    return region
        return None

    def give(self, region: "SharedRegion") -> None:
        """Keep a region that is no longer read or written. Drops the oldest regions beyond `most_bytes`."""
        with self._held:
            self._kept[region.region_id] = (region, self._monotonic())
            while self._kept and sum(kept.size.total_bytes for kept, _ in self._kept.values()) > self._most_bytes:
                self._drop(next(iter(self._kept)))
            self._wind()

    def expire(self) -> None:
        """Drop the regions that were kept for `keep_s` seconds."""
        with self._held:
            now = self._monotonic()
            for region_id in [one for one, (_, since) in self._kept.items() if now - since >= self._keep_s]:
                self._drop(region_id)
            self._timer = None
            self._wind()

    def _drop(self, region_id: str) -> None:
        self._kept.pop(region_id)[0].close()

    def _wind(self) -> None:
        if self._kept and self._timer is None:
            self._timer = threading.Timer(self._keep_s, self.expire)
            self._timer.daemon = True
            self._timer.start()
