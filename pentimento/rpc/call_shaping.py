"""How fast the calls of one tenant begin, so that a storm of them does not hold up the calls of others.

gRPC hands calls over one after the other, in the order in which they came, whoever they are of. To take one costs a
quarter of what it costs to read its message, to answer and to end it; all of that can wait. So a tenant's calls beyond
a rate begin later, in their order. Whoever comes behind a storm waits until the storm is taken, not until it is served.
One event loop; no locks.
"""

import asyncio
import time
from collections.abc import Callable

from pentimento.rpc.failures import too_many_waiting

# Calls of one key that begin at once, however fast they come.
BURST_CALLS = 32
# Of all keys together; each holds as much as a call that waits in gRPC.
WAITING_CALLS = 4096
# Keys that are past their bursts are forgotten whenever there are more than so many.
_KEPT_KEYS = 1024


class CallShaper:
    """At most so many calls a second begin for each key: a tenant, or the peer of a call that none was let in for."""

    def __init__(self, calls_per_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._step_s = 1.0 / calls_per_s
        self._monotonic = monotonic
        # When the next call of a key begins if none of its burst is left (GCRA's theoretical arrival time).
        self._due_at: dict[str, float] = {}
        self._waiting_count = 0

    async def begin(self, key: str) -> None:
        """Wait until the call may begin. Raises ResourceExhausted when too many wait already."""
        delay_s = self._delay_s(key)
        if delay_s <= 0:
            return
        if self._waiting_count >= WAITING_CALLS:
            raise too_many_waiting(WAITING_CALLS)
        self._waiting_count += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._waiting_count -= 1

    def _delay_s(self, key: str) -> float:
        now = self._monotonic()
        earliest = now - (BURST_CALLS - 1) * self._step_s
        due_at = max(self._due_at.get(key, earliest), earliest)
        self._due_at[key] = due_at + self._step_s
        if len(self._due_at) > _KEPT_KEYS:
            self._due_at = {key: due for key, due in self._due_at.items() if due > now}
        return due_at - now
