"""Time as an argument, so that pure code never asks for it."""

import time
from typing import Protocol


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
