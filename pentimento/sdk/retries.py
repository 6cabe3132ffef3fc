"""When a call that the server did not answer is made again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pentimento.domain.backoff import Backoff
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.reasons import Reason

T = TypeVar("T")

# A request that the server has accepted may have ended so: it would be told the same of it for ever.
_ENDS = (Reason.WORKER_LOST, Reason.INPUT_UNAVAILABLE)


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

    def most_tries(self, error: PentimentoError, *, accepted: bool) -> int:
        """Return how often a call that failed so is made at most. `accepted`: it waits for an accepted request."""
        is_patient = accepted and self.tries > 1 and error.reason not in _ENDS
        return max(self.tries, self.accepted_tries) if is_patient else self.tries

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
