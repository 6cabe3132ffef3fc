"""Retry calls that the server did not answer, and continue broken streams of events."""

import asyncio
import itertools
import math
import random
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from pentimento.domain.clock import Backoff
from pentimento.domain.errors import Cancelled, PentimentoError, Unavailable
from pentimento.domain.image_request import Accepted, Completed, GenerateEvent, ImageFailed, Progress
from pentimento.domain.reasons import Reason

T = TypeVar("T")

# The final error of an accepted request: a retry would get the same.
_ENDS = (Reason.WORKER_LOST, Reason.INPUT_UNAVAILABLE, Reason.CONTROLNET_LOST)


@dataclass(frozen=True)
class RetryPolicy:
    """Decide about retries of failed calls; pauses in seconds, `tries` calls at most (1: no retry).

    An accepted request gets `accepted_tries` if that is more: it continues meanwhile, and a restart of a server takes
    longer than a call should take to fail. Pauses double, with a random factor that spreads clients."""

    tries: int = 6
    first_pause_s: float = 0.2
    max_pause_s: float = 3.0
    generator: random.Random = field(default_factory=random.Random, repr=False)
    accepted_tries: int = 30

    def pause_s(self, attempt: int, wished_ms: int | None) -> float:
        """Return the pause after the failure of try `attempt` (1, 2, …), at least the server's RetryInfo."""
        pauses = Backoff(self.first_pause_s, self.max_pause_s)
        return max(pauses.random_delay_s(attempt, self.generator), (wished_ms or 0) / 1000)

    def most_tries(self, error: PentimentoError, *, accepted: bool, late: bool) -> int:
        """Return the most tries of a call after an error. `accepted`: the call waits for an accepted request; `late`:
        the caller's deadline has passed, so another request would be late."""
        if accepted and error.reason in _ENDS:
            return 1
        if late:
            return self.tries if accepted else 1
        return max(self.tries, self.accepted_tries) if accepted and self.tries > 1 else self.tries

    async def answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of `call`, retried while the server does not answer (UNAVAILABLE)."""
        attempt = 1
        while True:
            try:
                return await call()
            except Unavailable as error:
                if attempt == self.tries:
                    raise
                pause_s = self.pause_s(attempt, error.retry_after_ms)
            attempt += 1
            await asyncio.sleep(pause_s)


# Makes a call with an idempotency key and a deadline in milliseconds from now.
StreamCall = Callable[[str, int | None], AsyncGenerator[GenerateEvent, None]]


async def retried_events(
    call: StreamCall,
    retries: RetryPolicy,
    *,
    idempotency_key: str,
    deadline_ms: int | None = None,
    accepted: bool = False,
) -> AsyncGenerator[GenerateEvent, None]:
    """Yield the events of `call`, which gets a key and a deadline and is retried if the server does not answer.
    `accepted`: the request was accepted before."""
    key = idempotency_key or uuid.uuid4().hex
    left_ms = deadline_ms
    ends_at = time.monotonic() + (deadline_ms or math.inf) / 1000
    reported = ReportedEvents()
    restart_count = 0
    for attempt in itertools.count(1):
        # With a generated key a retry is a new request; with the caller's key the caller decides.
        may_restart = restart_count < retries.tries - 1 and not idempotency_key
        restarts, wished_ms = False, None
        try:
            async with aclosing(call(key, left_ms)) as events:
                async for event in events:
                    if may_restart and isinstance(event, ImageFailed) and taken_for_gone(event.error):
                        restarts = True
                    elif reported.is_new(event):
                        yield event
            if not restarts:
                return
        except (Unavailable, Cancelled) as error:
            if reported.all_completed:
                return
            restarts, wished_ms = may_restart and taken_for_gone(error), error.retry_after_ms
            is_accepted = accepted or reported.accepted
            most = retries.most_tries(error, accepted=is_accepted, late=time.monotonic() >= ends_at)
            if not restarts and (isinstance(error, Cancelled) or attempt >= most):
                raise
        await asyncio.sleep(retries.pause_s(attempt, wished_ms))
        if restarts:
            key = uuid.uuid4().hex
            restart_count += 1
            # At least one: the server then reports the passed deadline.
            left_ms = deadline_ms and max(round((ends_at - time.monotonic()) * 1000), 1)


def taken_for_gone(error: PentimentoError) -> bool:
    """Return whether a request, or one of its images, ended because its client's connection broke."""
    return error.reason == Reason.CLIENT_LEFT


class ReportedEvents:
    """Record the events of a stream by kind and image. A retry repeats only progress, and none of ended images; if it
    is another request, all its events are new."""

    def __init__(self) -> None:
        self._request_id: str | None = None
        self._given: set[tuple[type[GenerateEvent], int]] = set()
        self._ended: set[int] = set()
        self._count = 1
        self._has_picture = False

    @property
    def accepted(self) -> bool:
        """Return whether the server has accepted a request."""
        return self._request_id is not None

    @property
    def all_completed(self) -> bool:
        """Return whether all images have ended; an error of the call after that is ignored."""
        return self._has_picture and len(self._ended) == self._count

    def is_new(self, event: GenerateEvent) -> bool:
        """Return whether the caller has not received such an event yet, and record it."""
        if isinstance(event, Accepted):
            return self._begin(event)
        key = (type(event), event.image_index)
        if event.image_index in self._ended or (key in self._given and not isinstance(event, Progress)):
            return False
        self._given.add(key)
        if isinstance(event, Completed | ImageFailed):
            self._ended.add(event.image_index)
            self._has_picture |= isinstance(event, Completed)
        return True

    def _begin(self, accepted: Accepted) -> bool:
        """Return whether an event begins another request."""
        if accepted.request_id == self._request_id:
            return False
        self._request_id, self._given = accepted.request_id, set()
        self._count = max(len(accepted.image_request_ids), 1)
        return True
