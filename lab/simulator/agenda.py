"""Order events in virtual time."""

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

Action = Callable[[Any], None]


class Timer:
    """A call that is due later, unless it is cancelled."""

    def __init__(self, call: Callable[[Any], None]) -> None:
        self._call: Callable[[Any], None] | None = call

    def cancel(self) -> None:
        """Changes state."""
        self._call = None

    def fire(self, argument: Any) -> None:
        if self._call is not None:
            self._call(argument)


class Agenda:
    """Actions by time; those of one instant in the order they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._numbers = count()

    def at(self, time_s: float, action: Action, argument: Any = None) -> None:
        """Changes state. An instant that is over is now."""
        heapq.heappush(self._heap, (max(time_s, self.now), next(self._numbers), action, argument))

    def later(self, delay_s: float, call: Callable[[Any], None], argument: Any) -> "Timer":
        """Changes state. Return a handle that cancels the call."""
        timer = Timer(call)
        self.at(self.now + delay_s, timer.fire, argument)
        return timer

    def next_time(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[Action, Any]:
        """Changes state: it is the next action's time now. IndexError when there is none."""
        self.now, _, action, argument = heapq.heappop(self._heap)
        return action, argument
