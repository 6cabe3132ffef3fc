"""Retry calls that the server did not answer."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pentimento.domain.backoff import Backoff
from pentimento.domain.errors import PentimentoError, Unavailable
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


class CallersDeadline:
    """Hold a caller's deadline for a request and all its retries; None is no deadline."""

    def __init__(self, deadline_ms: int | None) -> None:
        self._deadline_ms = deadline_ms
        self._began_at = time.monotonic()

    @property
    def has_passed(self) -> bool:
        """Return whether the deadline has passed."""
        return self._deadline_ms is not None and self._left_ms(self._deadline_ms) <= 0

    @property
    def left_ms(self) -> int | None:
        """Return the milliseconds left, at least one: the server then reports the passed deadline."""
        return None if self._deadline_ms is None else max(self._left_ms(self._deadline_ms), 1)

    def _left_ms(self, deadline_ms: int) -> int:
        return deadline_ms - round((time.monotonic() - self._began_at) * 1000)
