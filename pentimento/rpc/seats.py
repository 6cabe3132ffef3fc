"""Limit the calls that run together, in total and of each tenant or peer."""

from collections import Counter

from pentimento.rpc.failures import too_many_calls, too_many_calls_of_one


class Seats:
    """Count one seat for each admitted call, by key."""

    def __init__(self, limit: int, share: int) -> None:
        self._limit = limit
        self._share = share
        self._taken_count = 0
        self._by_key: Counter[str] = Counter()

    def take(self, key: str) -> None:
        """Take a seat, which `leave` gives back. ResourceExhausted if all are taken, or all of this key."""
        if self._taken_count >= self._limit:
            raise too_many_calls(self._limit)
        if self._by_key[key] >= self._share:
            raise too_many_calls_of_one(self._share)
        self._taken_count += 1
        self._by_key[key] += 1

    def leave(self, key: str) -> None:
        self._taken_count -= 1
        self._by_key[key] -= 1
        if not self._by_key[key]:
            del self._by_key[key]
