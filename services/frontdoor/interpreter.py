"""Run the dataplane live: take in events one by one, perform their effects, and wake it by a timer."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from pentimento.dataplane import Dataplane
from pentimento.dataplane.effects import EFFECTS, Effect
from pentimento.dataplane.endings import failure_of
from pentimento.dataplane.events import Event, TimePassed
from pentimento.dataplane.recording import header_line, step_line
from pentimento.domain.clock import Clock

logger = logging.getLogger(__name__)

Performer = Callable[[Any], None]
Observer = Callable[[float, Event, Sequence[Effect]], None]


class Interpreter:
    """Pass events to the dataplane and its effects to performers, on one event loop.

    Performers return at once and answer, now or later, with `submit`; if one raises, the dataplane gets EffectFailed.
    """

    def __init__(self, dataplane: Dataplane, clock: Clock) -> None:
        self.dataplane = dataplane
        self.clock = clock
        # Receives every event with its effects, before they are performed, until it raises.
        self.observer: Observer | None = None
        self._performers: dict[type, Performer] = {}
        self._events: deque[Event] = deque()
        self._submitting = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    def perform_with(self, performers: Mapping[type, Performer]) -> None:
        """Set the performer of each kind of effect. Raises ValueError if a kind has none."""
        missing = set(EFFECTS) - set(performers)
        if missing:
            raise ValueError(f"no performer for {sorted(kind.__name__ for kind in missing)}")
        self._performers.update(performers)

    def submit(self, event: Event) -> None:
        """Process an event. If a performer submits one, it is processed after all effects of the present event."""
        if self._closed:
            return
        self._events.append(event)
        if self._submitting:
            return
        self._submitting = True
        try:
            while self._events:
                self._take(self._events.popleft())
        finally:
            self._submitting = False
        self._set_timer()

    def close(self) -> None:
        """Cancel the timer and ignore later events: the next start handles them."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _take(self, event: Event) -> None:
        now = self.clock.monotonic()
        effects = self.dataplane.on_event(now, event)
        self._observe(now, event, effects)
        for effect in effects:
            try:
                self._performers[type(effect)](effect)
            except Exception:  # one request's defect must not block the effects of others
                logger.exception("an effect was not performed", extra={"effect": type(effect).__name__})
                self._events.append(failure_of(effect))

    def _observe(self, now: float, event: Event, effects: Sequence[Effect]) -> None:
        """Pass the event to the observer, and drop an observer that raises: effects are performed regardless."""
        if self.observer is None:
            return
        try:
            self.observer(now, event, effects)
        except Exception:
            self.observer = None
            logger.exception("recording of events stopped")

    def _set_timer(self) -> None:
        wakeup = self.dataplane.next_wakeup()
        if wakeup == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, wakeup
        if wakeup is not None:
            delay = max(wakeup - self.clock.monotonic(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, None
        self.submit(TimePassed())


class EffectsRecorder:
    """Write lines through immediately: the recording of a killed process is complete up to its last event."""

    def __init__(self, path: Path, dataplane: Dataplane) -> None:
        """Truncate the file and write its header. Raises OSError."""
        self._file: TextIO = path.open("w", encoding="utf-8", buffering=1)
        self._file.write(header_line(dataplane.state.epoch, dataplane.state.settings))

    def record(self, now: float, event: Event, effects: Sequence[Effect]) -> None:
        self._file.write(step_line(now, event, effects))

    def close(self) -> None:
        self._file.close()
