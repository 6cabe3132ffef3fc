"""Clocks in a test's hands."""

from dataclasses import dataclass


@dataclass
class SetClock:
    """A `domain.clock.Clock` that stands still until its fields are set."""

    wall_s: float = 1000.0
    monotonic_s: float = 0.0

    def monotonic(self) -> float:
        """Return `monotonic_s`."""
        return self.monotonic_s

    def wall(self) -> float:
        """Return `wall_s`."""
        return self.wall_s
