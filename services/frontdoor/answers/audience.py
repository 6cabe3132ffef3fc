"""Buffer events for each listener of a request: a slow reader misses progress, never the result.

Several images of one call are separate requests for dataplane, journal and workers. Their ids show that they belong
together: `p3-<hex>` names a call for three images, `p3-<hex>-0` to `p3-<hex>-2` name the images.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

from pentimento.domain.clock import Clock, SystemClock
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Route
from pentimento.domain.image_request import Accepted, GenerateEvent, ImageFailed, Progress, RequestStatus, Routed
from pentimento.domain.jobs import RequestState
from pentimento.domain.reasons import Reason

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
        listener.leave()
        listener.audience = self
        self.listeners.add(listener)
        listener.tell(Accepted(self.request_id, replayed=True))
        if self._route is not None:
            listener.tell(Routed(self._route))

    def accepted(self) -> None:
        self.tell(Accepted(self.request_id))

    def routed(self, route: Route) -> None:
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


_GROUP_ID = re.compile(r"p([1-9][0-9]{0,2})-[0-9a-f]{32}")
# No client's key contains it: keys are printable.
_SEPARATOR = "\x1f"
_SEED_COUNT = 2**64
# Reasons that this frontdoor is the wrong one to listen to; they do not concern the image.
_OF_THE_STREAM = (Reason.SUPERSEDED, Reason.REQUEST_ELSEWHERE)


def new_group_id(count: int, digits: str) -> str:
    """Return the id of a call of `count` images with 32 new hexadecimal digits."""
    return f"p{count}-{digits}"


def ids_of_images(group_id: str) -> tuple[str, ...]:
    """Return the ids of a call's images by their index; empty if the id names no such call."""
    found = _GROUP_ID.fullmatch(group_id)
    return tuple(f"{group_id}-{index}" for index in range(int(found[1]))) if found else ()


def group_of(request_id: str) -> str:
    """Return the id of the call of an image; "" if it is not one of several."""
    group = request_id.rpartition("-")[0]
    return group if request_id in ids_of_images(group) else ""


def images_of_call(request_id: str) -> int:
    return max(len(ids_of_images(group_of(request_id))), 1)


def key_of_image(idempotency_key: str, index: int) -> str:
    """Return the idempotency key of one of several images. The first image has the call's own key, so another call
    finds it in use."""
    return f"{idempotency_key}{_SEPARATOR}{index}" if idempotency_key and index else idempotency_key


def client_key(image_key: str) -> str:
    """Return the client's idempotency key from the key of one of several images."""
    return image_key.partition(_SEPARATOR)[0]


def seed_of_image(first_seed: int, index: int) -> int:
    """Return the seed of one of several images if the client named the first one's."""
    return (first_seed + index) % _SEED_COUNT


def status_of(group_id: str, pictures: Sequence[RequestStatus]) -> RequestStatus:
    """Return the status of a call: the state of the image that has progressed least; once all have ended, COMPLETED if
    any image completed, else the state of the first."""
    states = [picture.state for picture in pictures]
    order = list(RequestState)
    open_states = sorted((state for state in states if not state.terminal), key=order.index)
    completed = [state for state in states if state is RequestState.COMPLETED]
    return RequestStatus(group_id, [*open_states, *completed, *states][0], images=tuple(pictures))


class SeveralImages:
    """Merge the streams of several images for one client. Call `accepted` first, then iterate over `events`."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)
        self._news = asyncio.Event()
        for listener in self._listeners:
            listener.news = self._news
            listener.progress_interval_s *= len(self._listeners)
        self._ids: list[str] = []

    async def accepted(self) -> Accepted:
        """Return once all images are accepted. Raises the rejection of the first rejected image."""
        firsts = [await self._first(listener) for listener in self._listeners]
        self._ids = [first.request_id for first in firsts]
        self._news.set()
        return Accepted(group_of(self._ids[0]), all(first.replayed for first in firsts), tuple(self._ids))

    async def events(self) -> AsyncIterator[GenerateEvent]:
        """Yield the events of all images, each with its image's index. A failed image does not end the stream, unless
        none completes: then the first one's error is raised at the end."""
        waiting = dict(enumerate(self._listeners))
        failures: dict[int, PentimentoError] = {}
        while waiting:
            await self._news.wait()
            self._news.clear()
            for index, listener in tuple(waiting.items()):
                for event in listener.take():
                    if not isinstance(event, Accepted | ImageFailed):
                        yield replace(event, image_index=index)
                if listener.ended:
                    del waiting[index]
                    if listener.error is not None:
                        failures[index] = _of_image(listener.error)
                        yield ImageFailed(self._ids[index], index, listener.error)
        if len(failures) == len(self._listeners):
            raise failures[min(failures)]

    async def _first(self, listener: Listener) -> Accepted:
        while True:
            for event in listener.take():
                assert isinstance(event, Accepted)
                return event
            if listener.error is not None:
                raise listener.error
            self._news.clear()
            await self._news.wait()


def _of_image(error: PentimentoError) -> PentimentoError:
    """Return the error of an image; raise an error of the stream."""
    if error.reason in _OF_THE_STREAM:
        raise error
    return error
