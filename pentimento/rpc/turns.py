"""Choose the request message that is received now: quick places alternate among the waiting keys, and steady ones take
messages that need longer. Each key holds at most a share of either. One event loop; no locks.
"""

import asyncio
from collections import Counter, deque


class ReceivingTurns:
    """Hold places that receive messages, by key: a tenant, or a peer without one."""

    def __init__(self, quick_count: int, steady_count: int, quick_share: int, steady_share: int) -> None:
        """Open the places. The shares bound one key's places of each kind."""
        self._quick_free_count = quick_count
        self._quick_share = quick_share
        self._quick: Counter[str] = Counter()
        self._steady_free_count = steady_count
        self._steady_share = steady_share
        self._steady: Counter[str] = Counter()
        # Keys in the order of their turns, each with its waiting calls.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def waited_for(self) -> bool:
        """Return whether a call waits for a quick place."""
        return any(not one.done() for queue in self._waiting.values() for one in queue)

    async def enter(self, key: str) -> None:
        """Return with a quick place, to be left by `leave` or exchanged by `settle`."""
        if self.may_enter(key):
            self._take(key)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(key)
            raise

    def leave(self, key: str) -> None:
        """Give the key's quick place to the next key in turn that may have it."""
        self._quick_free_count += 1
        self._quick[key] -= 1
        if not self._quick[key]:
            del self._quick[key]
        while (following := next(filter(self.may_enter, self._waiting), None)) is not None:
            queue = self._waiting.pop(following)
            turn = queue.popleft()
            if queue:
                self._waiting[following] = queue
            if not turn.done():
                self._take(following)
                turn.set_result(None)
                return

    def may_enter(self, key: str) -> bool:
        """Return whether there is a quick place for the key now."""
        return self._quick_free_count > 0 and self._quick[key] < self._quick_share

    def _take(self, key: str) -> None:
        self._quick_free_count -= 1
        self._quick[key] += 1

    def settle(self, key: str) -> bool:
        """Take a steady place, to be left by `unsettle`; False if there is none for this key."""
        if self._steady_free_count <= 0 or self._steady[key] >= self._steady_share:
            return False
        self._steady_free_count -= 1
        self._steady[key] += 1
        return True

    def unsettle(self, key: str) -> None:
        self._steady_free_count += 1
        self._steady[key] -= 1
        if not self._steady[key]:
            del self._steady[key]
