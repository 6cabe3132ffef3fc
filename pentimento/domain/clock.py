"""Time as an argument, so that pure code never asks for it."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

# A step of the wall clock by more than this is no correction, and is believed once it has lasted.
JUMP_S = 300.0
JUMP_LASTS_S = 3600.0


class Clock(Protocol):
    """Seconds; `monotonic` never jumps, `wall` is what people and stores read."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


def boot_s() -> float:
    """Return seconds since the machine began, including sleep and pauses where the system counts them (Linux)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def boot_id() -> str:
    """Return the name of the machine's start, which no other start has; "" where the system has none (not Linux)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class SteadyClock:
    """A clock that ignores a jump of the wall clock until the jump has lasted an hour, for things that expire by wall
    time and cannot be brought back.

    Meanwhile it advances by `elapsed` (default: the other clock's monotonic time). It trusts the wall time at its
    start. Processes that share a store may differ for that hour. Thread-safe.
    """

    def __init__(self, clock: Clock, elapsed: Callable[[], float] | None = None) -> None:
        self._clock = clock
        self._elapsed = elapsed or clock.monotonic
        self._lock = Lock()
        # Wall time at the moment when `elapsed` was 0: the trusted value, and a new value with the time it was first
        # seen.
        self._believed_s = clock.wall() - self._elapsed()
        self._jumped_s = self._believed_s
        self._jumped_at: float | None = None

    def monotonic(self) -> float:
        """Return the other clock's."""
        return self._clock.monotonic()

    def wall(self) -> float:
        """Return trusted wall time."""
        with self._lock:
            now = self._elapsed()
            self._set_offset(self._clock.wall() - now, now)
            return now + self._believed_s

    def wall_as_told(self) -> float:
        """Return wall time as the other clock tells it: for what another process compares with its own."""
        return self._clock.wall()

    def _set_offset(self, told_s: float, now: float) -> None:
        if abs(told_s - self._believed_s) <= JUMP_S:
            self._believed_s, self._jumped_at = told_s, None
            return
        if self._jumped_at is None or abs(told_s - self._jumped_s) > JUMP_S:
            self._jumped_s, self._jumped_at = told_s, now
        if now - self._jumped_at >= JUMP_LASTS_S:
            self._believed_s, self._jumped_at = told_s, None


# How far ahead of the clock an epoch may be and still be believed: a year, in milliseconds.
BELIEVABLE_LEAD_MS = 366 * 24 * 3600 * 1000


def epoch_at(wall_s: float) -> int:
    """The epoch of a start at that wall-clock time, where none is stored."""
    return int(wall_s * 1000)


def latest_believable(wall_s: float) -> int:
    """The largest epoch to accept. A peer that lies must not push epochs to their end."""
    return epoch_at(wall_s) + BELIEVABLE_LEAD_MS


@dataclass(frozen=True)
class LeaseState:
    """Active holder of a ledger: the newest epoch, and how often its holder has beaten. Epoch 0: no holder yet."""

    epoch: int
    beat: int


# A delay that was doubled so often is beyond any limit; a float cannot be doubled for ever.
MAX_DOUBLINGS = 32


@dataclass(frozen=True)
class Backoff:
    """Delays in seconds: the first, then each twice as long as the one before, none above the longest."""

    first_s: float
    max_s: float

    def delay_s(self, failures: int) -> float:
        """Return the delay after `failures` failures in a row, at least one."""
        return min(self.first_s * 2.0 ** min(failures - 1, MAX_DOUBLINGS), self.max_s)

    def random_delay_s(self, failures: int, random_source: random.Random) -> float:
        """Return `delay_s` less up to half of it, so that many who failed at once do not return at once."""
        longest = self.delay_s(failures)
        return random_source.uniform(longest / 2, longest)

    def delays_s(self) -> Iterator[float]:
        """Yield the delays after the first, second, … failure, without end."""
        failures = 0
        while True:
            failures += 1
            yield self.delay_s(failures)
