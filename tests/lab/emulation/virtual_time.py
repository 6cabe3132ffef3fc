"""Pass time as tests ask."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class VirtualTimers:
    """Hold an emulated device's timers. `late_s`: the delay of every call, as on a busy machine."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now = 0.0
        self.late_s = late_s
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._numbers = count()

    def at(self, time_s: float, action: Callable[[Any], None], argument: Any = None) -> None:
        heapq.heappush(self._heap, (time_s, next(self._numbers), action, argument))

    def run_until(self, end: float) -> None:
        """Call everything that is due by then, in order."""
        while self._heap and self._heap[0][0] + self.late_s <= end:
            when, _, action, argument = heapq.heappop(self._heap)
            self.now = max(self.now, when + self.late_s)
            action(argument)
        self.now = max(self.now, end)
