"""Those who listen to a request, each with a bounded buffer: a slow reader misses progress, never the result."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Route
from pentimento.domain.image_request import Accepted, GenerateEvent, Progress, Routed

# Progress messages that wait for a reader; the oldest make room.
MAX_PENDING_PROGRESS = 16
# Between two of those without a preview, of all images of a call together: each costs this process 0.2 ms.
PROGRESS_INTERVAL_S = 0.1


class Listener:
    """One client's stream. Iterate over it until it ends, then `leave`. `hears_progress`: whether it waits for routed
    and for progress without a preview, too: one in `progress_interval_s`, and the last one."""

    def __init__(self, audience: "Audience", hears_progress: bool = True) -> None:
        self.audience = audience
        self.hears_progress = hears_progress
        self._pending: deque[GenerateEvent] = deque()
        self._progress_count = 0
        self.progress_interval_s = PROGRESS_INTERVAL_S
        self._next_progress_at = 0.0
        # The newest progress that came within the interval.
        self._held_back: Progress | None = None
        self.ended = False
        # What it ended with, raised once everything before it was heard.
        self.error: PentimentoError | None = None
        # Set whenever there is something to hear; several listeners of one stream may share it.
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
        # A preview takes time to make: the progress held back may be of a later step.
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
        """Nothing follows; `error` is raised once everything before it was heard."""
        self._tell_held_back()
        self.ended, self.error = True, error
        self.news.set()

    def leave(self) -> None:
        self.audience.listeners.discard(self)

    def take(self) -> Iterator[GenerateEvent]:
        """Yield what waits, and take it away; what comes meanwhile too."""
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
    """The listeners of one request, and what a late one has to be told first."""

    def __init__(self, request_id: str, route: Route | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.listeners: set[Listener] = set()
        self.request_id = request_id
        self._route = route
        self._newest: Progress | None = None

    @property
    def progress(self) -> Progress | None:
        """How far the request is, without a preview; None before its first step."""
        return None if self._newest is None else replace(self._newest, preview=b"")

    def join(self, *, hears_progress: bool = True) -> Listener:
        listener = Listener(self, hears_progress)
        self.listeners.add(listener)
        return listener

    def join_late(self, *, hears_progress: bool = True) -> Listener:
        """One whose idempotency key belongs to this request, which is in the journal."""
        listener = Listener(self, hears_progress)
        self.move_here(listener)
        return listener

    def move_here(self, listener: Listener) -> None:
        """A listener whose idempotency key belongs to this request."""
        listener.leave()
        listener.audience = self
        self.listeners.add(listener)
        listener.tell(Accepted(self.request_id, replayed=True))
        if self._route is not None:
            listener.tell(Routed(self._route))

    def accepted(self) -> None:
        self.tell(Accepted(self.request_id))

    def routed(self, route: Route) -> None:
        """Known from here on to late listeners too."""
        self._route = route
        self.tell(Routed(route))

    def hears_progress(self) -> bool:
        """Return whether anybody waits for progress without a preview."""
        return any(listener.hears_progress for listener in self.listeners)

    def tell(self, event: GenerateEvent) -> None:
        if isinstance(event, Progress):
            self._newest = event
        for listener in self.listeners:
            listener.tell(event)

    def end(self, error: PentimentoError | None = None) -> None:
        for listener in self.listeners:
            listener.end(error)
