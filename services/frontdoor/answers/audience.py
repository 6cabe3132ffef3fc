"""Buffer events for each listener of a request: a slow reader misses progress, never the result."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Route
from pentimento.domain.image_request import Accepted, GenerateEvent, Progress, Routed

# Progress messages that wait for a reader; a new one replaces the oldest.
MAX_PENDING_PROGRESS = 16
# Seconds between progress messages without a preview, for all images of a call together: a message costs this process
# 0.2 ms.
PROGRESS_INTERVAL_S = 0.1


class Listener:
    """Buffer the stream of one client. Iterate over `events` until they end, then call `leave`. `hears_progress`: also
    deliver routed and progress without a preview, at most one in `progress_interval_s` and the last one."""

    def __init__(self, audience: "Audience", hears_progress: bool = True) -> None:
        self.audience = audience
        self.hears_progress = hears_progress
        self._pending: deque[GenerateEvent] = deque()
        self._progress_count = 0
        self.progress_interval_s = PROGRESS_INTERVAL_S
        self._next_progress_at = 0.0
        # The newest progress within the interval.
        self._held_back: Progress | None = None
        self.ended = False
        # The stream's final error, raised after all earlier events.
        self.error: PentimentoError | None = None
        # Set when an event waits; several listeners of one stream may share it.
        self.news = asyncio.Event()

    def tell(self, event: GenerateEvent) -> None:
        if not self._hears(event):
            return
        if not isinstance(event, Progress):
            self._tell_held_back()
            self._add(event)
            return
        now = self.audience.clock.monotonic()
        if now < self._next_progress_at and not event.preview:
            self._held_back = event
            return
        self._next_progress_at = now + self.progress_interval_s
        # Previews arrive late: the progress held back may belong to a later step.
        if self._held_back is not None and _place(self._held_back) <= _place(event):
            self._held_back = None
        self._add(event)

    def _tell_held_back(self) -> None:
        """Send the last progress before the next event."""
        if self._held_back is not None:
            self._add(self._held_back)
            self._held_back = None

    def _add(self, event: GenerateEvent) -> None:
        if isinstance(event, Progress):
            if self._progress_count == MAX_PENDING_PROGRESS:
                self._pending.remove(next(old for old in self._pending if isinstance(old, Progress)))
                self._progress_count -= 1
            self._progress_count += 1
        self._pending.append(event)
        self.news.set()

    def end(self, error: PentimentoError | None) -> None:
        """End the stream. The reader gets all earlier events, then `error`."""
        self._tell_held_back()
        self.ended, self.error = True, error
        self.news.set()

    def leave(self) -> None:
        self.audience.listeners.discard(self)

    def take(self) -> Iterator[GenerateEvent]:
        """Yield and remove the waiting events, and any that arrive during the iteration."""
        while self._pending:
            event = self._pending.popleft()
            self._progress_count -= isinstance(event, Progress)
            yield event

    def _hears(self, event: GenerateEvent) -> bool:
        if self.hears_progress:
            return True
        return bool(event.preview) if isinstance(event, Progress) else not isinstance(event, Routed)

    async def events(self) -> AsyncIterator[GenerateEvent]:
        while True:
            for event in self.take():
                yield event
            if self.ended:
                break
            self.news.clear()
            await self.news.wait()
        if self.error is not None:
            raise self.error


def _place(progress: Progress) -> tuple[int, int]:
    return progress.attempt_number, progress.step


class Audience:
    """Hold the listeners of one request, and the events that a late listener receives first."""

    def __init__(self, request_id: str, route: Route | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.listeners: set[Listener] = set()
        self.request_id = request_id
        self._route = route
        self._newest: Progress | None = None

    @property
    def progress(self) -> Progress | None:
        """Return the newest progress, without a preview; None before the first step."""
        return None if self._newest is None else replace(self._newest, preview=b"")

    def join(self, *, hears_progress: bool = True) -> Listener:
        listener = Listener(self, hears_progress)
        self.listeners.add(listener)
        return listener

    def join_late(self, *, hears_progress: bool = True) -> Listener:
        """Add a listener with an idempotency key that belongs to this request, which is in the journal."""
        listener = Listener(self, hears_progress)
        self.move_here(listener)
        return listener

    def move_here(self, listener: Listener) -> None:
        """Move a listener here: its idempotency key belongs to this request."""
        listener.leave()
        listener.audience = self
        self.listeners.add(listener)
        listener.tell(Accepted(self.request_id, replayed=True))
        if self._route is not None:
            listener.tell(Routed(self._route))

    def accepted(self) -> None:
        self.tell(Accepted(self.request_id))

    def routed(self, route: Route) -> None:
        """Send the route to present and late listeners."""
        self._route = route
        self.tell(Routed(route))

    def hears_progress(self) -> bool:
        """Return whether a listener waits for progress without a preview."""
        return any(listener.hears_progress for listener in self.listeners)

    def tell(self, event: GenerateEvent) -> None:
        if isinstance(event, Progress):
            self._newest = event
        for listener in self.listeners:
            listener.tell(event)

    def end(self, error: PentimentoError | None = None) -> None:
        for listener in self.listeners:
            listener.end(error)
