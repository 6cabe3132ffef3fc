"""Measure the share of time that the device was busy."""

from collections.abc import Callable


class BusyMeter:
    """Add up busy seconds. `add` runs on the engine's thread, `share` on the event loop: a float is replaced whole."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._busy_s = 0.0
        self._asked_busy_s = 0.0
        self._asked_at = monotonic()

    def add(self, seconds: float) -> None:
        self._busy_s += seconds

    def share(self) -> float:
        """Return the busy share since the last call, 0..1."""
        now, busy_s = self._monotonic(), self._busy_s
        elapsed, busy = now - self._asked_at, busy_s - self._asked_busy_s
        self._asked_at, self._asked_busy_s = now, busy_s
        return min(busy / elapsed, 1.0) if elapsed > 0 else 0.0
