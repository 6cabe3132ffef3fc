"""Measure what loads of components cost from each tier."""

import threading
from collections.abc import Mapping

from pentimento.domain.components import GB, Tier, TierSpeed

# Weight of the newest load in the average of a tier.
NEWEST_WEIGHT = 0.3


class LoadSpeeds:
    """Average the seconds per gigabyte of loads, by tier. On any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds_per_gb: dict[Tier, float] = {}

    def note(self, parts: Mapping[Tier, int], seconds: float) -> None:
        """Count a load of `parts`, bytes by tier. The slowest tier takes the seconds that the others do not explain."""
        if not any(parts.values()):
            return
        slowest = max((tier for tier, size_bytes in parts.items() if size_bytes), key=list(Tier).index)
        with self._lock:
            others = (self._seconds_per_gb.get(tier, 0.0) * parts[tier] / GB for tier in parts if tier is not slowest)
            measured = max(seconds - sum(others), 0.0) * GB / parts[slowest]
            before = self._seconds_per_gb.get(slowest, measured)
            self._seconds_per_gb[slowest] = before + NEWEST_WEIGHT * (measured - before)

    @property
    def speeds(self) -> tuple[TierSpeed, ...]:
        """Return the averages by tier, to two digits: noise in them is no news."""
        with self._lock:
            found = sorted(self._seconds_per_gb.items(), key=lambda item: item[0].value)
        return tuple(TierSpeed(tier, float(f"{seconds:.2g}")) for tier, seconds in found)
