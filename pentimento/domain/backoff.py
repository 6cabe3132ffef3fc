"""How long to wait before what failed is tried again."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

# A delay that was doubled so often is beyond any limit; a float cannot be doubled for ever.
MAX_DOUBLINGS = 32


@dataclass(frozen=True)
class Backoff:
    """Delays in seconds: the first, then each twice as long as the one before, none above the longest."""

    first_s: float
    max_s: float

    def delay_s(self, failures: int) -> float:
        """Return the delay after `failures` failures in a row, at least one."""
        return min(self.first_s * 2.0 ** min(failures - 1, MAX_DOUBLINGS), self.max_s)

    def random_delay_s(self, failures: int, random_source: random.Random) -> float:
        """Return `delay_s` less up to half of it, so that many who failed at once do not return at once."""
        longest = self.delay_s(failures)
        return random_source.uniform(longest / 2, longest)

    def delays_s(self) -> Iterator[float]:
        """Yield the delays after the first, second, … failure, without end."""
        failures = 0
        while True:
            failures += 1
            yield self.delay_s(failures)
