"""Measure the loads of LoRAs, and remember where each one was."""

import threading
from collections import OrderedDict
from collections.abc import Collection

from pentimento.domain.components import HeldComponent, Tier, TierSpeed
from pentimento.domain.fleet import MAX_TOLD_COUNT
from pentimento.service.load_speeds import LoadSpeeds
from services.unet_worker import metrics


class MeasuredLoads:
    """Average the seconds per gigabyte of loads, by tier, and keep the tier and size of the last loaded components. On
    any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._speeds = LoadSpeeds()
        # Where each component can be loaded from next time, and its bytes; the last loaded ones at the end.
        self._known: OrderedDict[str, tuple[Tier, int]] = OrderedDict()

    def note(self, digest: str, tier: Tier, size_bytes: int, seconds: float, kept_in: Tier) -> None:
        """Count a load from `tier`; `kept_in` has the component from now on."""
        metrics.LORA_LOAD_SECONDS.labels(tier.value).observe(seconds)
        self._speeds.note({tier: size_bytes}, seconds)
        with self._lock:
            self._known.pop(digest, None)
            self._known[digest] = (kept_in, size_bytes)
            while len(self._known) > MAX_TOLD_COUNT:
                self._known.popitem(last=False)

    @property
    def speeds(self) -> tuple[TierSpeed, ...]:
        return self._speeds.speeds

    def components(self, resident: Collection[str]) -> tuple[HeldComponent, ...]:
        """Return the last loaded components; `resident` ones are in host memory."""
        with self._lock:
            known = tuple(self._known.items())
        return tuple(
            HeldComponent(digest, Tier.HOST if digest in resident else tier, size_bytes)
            for digest, (tier, size_bytes) in known
        )
