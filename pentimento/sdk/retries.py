"""When a call that the server did not answer is made again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pentimento.domain.backoff import Backoff
from pentimento.domain.errors import Unavailable

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """When a failed call is tried again; seconds, and at most `tries` calls in all. Pauses double, and are drawn at
    random so that clients spread out."""

    tries: int = 6
    first_pause_s: float = 0.2
    max_pause_s: float = 3.0
    generator: random.Random = field(default_factory=random.Random, repr=False)

    def pause_s(self, attempt: int, wished_ms: int | None) -> float:
        """Return the pause after the failure of try `attempt` (1, 2, …): at least what the server asked for
        (RetryInfo)."""
        pauses = Backoff(self.first_pause_s, self.max_pause_s)
        return max(pauses.random_delay_s(attempt, self.generator), (wished_ms or 0) / 1000)

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
