"""How many calls are served at once, of everybody together and of each tenant or peer."""

from collections import Counter

from pentimento.rpc.failures import too_many_calls, too_many_calls_of_one


class Seats:
    """One for each call that was let in, by key."""

    def __init__(self, limit: int, share: int) -> None:
        self._limit = limit
        self._share = share
        self._taken_count = 0
        self._by_key: Counter[str] = Counter()

    def take(self, key: str) -> None:
        """To be given back by `leave`. ResourceExhausted when there are no more, or none for this key."""
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
