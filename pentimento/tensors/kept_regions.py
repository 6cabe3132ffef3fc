"""Regions of streams that ended, kept for the next one between the same two processes: making and mapping one costs as
much as a few steps take, all of it in memory that was zeroed and paged in before."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # regions keep those of their directory here
    from pentimento.tensors.regions import RegionSize, SharedRegion

# After so long without a stream its memory is the machine's again.
KEEP_S = 30.0
MOST_BYTES = 512 << 20
# More than that no end is asked to look for.
MOST_OFFERED = 16


class KeptRegions:
    """Those of one process that no stream uses, newest last. On any thread."""

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
        """Return what they are called."""
        return list(self._kept)[-MOST_OFFERED:]

    def take(self, region_ids: Sequence[str], size: "RegionSize") -> "SharedRegion | None":
        """Return one of those that is here and of that size, for a stream of its own; None where there is none."""
        with self._held:
            for region_id in region_ids[:MOST_OFFERED]:
                region, _ = self._kept.get(region_id, (None, 0.0))
                if region is not None and region.size == size:
                    del self._kept[region_id]
                    return region
        return None

    def give(self, region: "SharedRegion") -> None:
        """Keep a region that nothing reads or writes any more. The oldest go where that is too much."""
        with self._held:
            self._kept[region.region_id] = (region, self._monotonic())
            while self._kept and sum(kept.size.total_bytes for kept, _ in self._kept.values()) > self._most_bytes:
                self._drop(next(iter(self._kept)))
            self._wind()

    def expire(self) -> None:
        """Let those go that were kept for long enough."""
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
