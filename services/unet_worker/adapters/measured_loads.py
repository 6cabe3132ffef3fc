"""Measure what loads of components cost from each tier, and remember where a component was."""

import threading
from collections import OrderedDict
from collections.abc import Collection

from pentimento.domain.components import GB, HeldComponent, Tier, TierSpeed
from pentimento.domain.fleet import MAX_TOLD_COUNT
from services.unet_worker import metrics

# Weight of the newest load in the average of a tier.
NEWEST_WEIGHT = 0.3


class MeasuredLoads:
    """Average the seconds per gigabyte of loads, by tier, and keep the tier and size of the last loaded components. On
    any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds_per_gb: dict[Tier, float] = {}
        # Where each component can be loaded from next time, and its bytes; the last loaded ones at the end.
        self._known: OrderedDict[str, tuple[Tier, int]] = OrderedDict()

    def note(self, digest: str, tier: Tier, size_bytes: int, seconds: float, kept_in: Tier) -> None:
        """Count a load from `tier`; `kept_in` has the component from now on."""
        metrics.LORA_LOAD_SECONDS.labels(tier.value).observe(seconds)
        measured = seconds * GB / max(size_bytes, 1)
        with self._lock:
            before = self._seconds_per_gb.get(tier, measured)
            self._seconds_per_gb[tier] = before + NEWEST_WEIGHT * (measured - before)
            self._known.pop(digest, None)
            self._known[digest] = (kept_in, size_bytes)
            while len(self._known) > MAX_TOLD_COUNT:
                self._known.popitem(last=False)

    @property
    def speeds(self) -> tuple[TierSpeed, ...]:
        """Return the averages by tier, to two digits: noise in them is no news."""
        with self._lock:
            found = sorted(self._seconds_per_gb.items(), key=lambda item: item[0].value)
        return tuple(TierSpeed(tier, float(f"{seconds:.2g}")) for tier, seconds in found)

    def components(self, resident: Collection[str]) -> tuple[HeldComponent, ...]:
        """Return the last loaded components; `resident` ones are in host memory."""
        with self._lock:
            known = tuple(self._known.items())
        return tuple(
            HeldComponent(digest, Tier.HOST if digest in resident else tier, size_bytes)
            for digest, (tier, size_bytes) in known
        )
