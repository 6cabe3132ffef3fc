"""When a call that the server did not answer is made again."""

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

# A request that the server has accepted has ended so: whoever asks again is told the same.
_ENDS = (Reason.WORKER_LOST, Reason.INPUT_UNAVAILABLE, Reason.CONTROLNET_LOST)


@dataclass(frozen=True)
class RetryPolicy:
    """When a failed call is tried again; seconds, and at most `tries` calls in all (1: never again). For a request that
    the server has accepted there are `accepted_tries` where that is more: it goes on while nobody answers, and a server
    takes longer to start again than a call should take to fail. Pauses double, and are drawn at random so that clients
    spread out."""

    tries: int = 6
    first_pause_s: float = 0.2
    max_pause_s: float = 3.0
    generator: random.Random = field(default_factory=random.Random, repr=False)
    accepted_tries: int = 30

    def pause_s(self, attempt: int, wished_ms: int | None) -> float:
        """Return the pause after the failure of try `attempt` (1, 2, …): at least what the server asked for
        (RetryInfo)."""
        pauses = Backoff(self.first_pause_s, self.max_pause_s)
        return max(pauses.random_delay_s(attempt, self.generator), (wished_ms or 0) / 1000)

    def most_tries(self, error: PentimentoError, *, accepted: bool, late: bool) -> int:
        """Return how often a call that failed so is made at most. `accepted`: it waits for an accepted request; `late`:
        the caller's deadline has passed, in which another request would come too late."""
        if accepted and error.reason in _ENDS:
            return 1
        if late:
            return self.tries if accepted else 1
        return max(self.tries, self.accepted_tries) if accepted and self.tries > 1 else self.tries

    async def answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what `call` answers, which is made again while the server does not (UNAVAILABLE)."""
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
    """The time that a caller gives a request from now on, whatever is begun anew; None is no end."""

    def __init__(self, deadline_ms: int | None) -> None:
        self._deadline_ms = deadline_ms
        self._began_at = time.monotonic()

    @property
    def has_passed(self) -> bool:
        """Whether nothing is left."""
        return self._deadline_ms is not None and self._left_ms(self._deadline_ms) <= 0

    @property
    def left_ms(self) -> int | None:
        """What is left, at least a millisecond, of which a server says that it is over."""
        return None if self._deadline_ms is None else max(self._left_ms(self._deadline_ms), 1)

    def _left_ms(self, deadline_ms: int) -> int:
        return deadline_ms - round((time.monotonic() - self._began_at) * 1000)
