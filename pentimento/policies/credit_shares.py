"""Divide a worker's credits between the frontdoors that it serves, by max-min fairness.

    credits_of("a", 4, {"a": 2}, {}, ("a",))                  # 4: no other frontdoor has attempts
    credits_of("b", 4, {"a": 4}, {"a": 9.0}, ("a",))            # 1: one beyond a full worker shows that b has requests
    credits_of("a", 4, {"a": 3, "b": 1}, {"a": 9.0}, ("a", "b"))  # 3: b is due the next credit that an attempt frees

A frontdoor is awaited from its first attempt on, until an offered credit stays unused for a moment. Free credits go
first to awaited frontdoors below their share, the least served one before others, so that they alternate where the
division has a rest; the remainder goes to any. A frontdoor that is not awaited may always hold one attempt more than it
has, up to its share: the worker cannot know otherwise that requests wait there.
"""

from collections.abc import Collection, Mapping


def credits_of(
    frontdoor: str, credit_count: int, held: Mapping[str, int], served: Mapping[str, float], awaited: Collection[str]
) -> int:
    """Return the attempts that the frontdoor may hold, of a worker with `credit_count` credits. `held`: attempts by
    frontdoor; `served`: the work of its attempts so far (see `ServedWork`)."""
    active = {name for name, count in held.items() if count} | {*awaited, frontdoor}
    order = sorted(active, key=lambda name: (served.get(name, 0.0), name))
    share, rest = divmod(credit_count, len(order))
    own, left, granted = held.get(frontdoor, 0), max(credit_count - sum(held.values()), 0), 0
    for number, name in enumerate(order):
        if name == frontdoor or name in awaited:
            due = min(max(share + (number < rest) - held.get(name, 0), 0), left)
            left -= due
            granted += due if name == frontdoor else 0
    allowed = min(own, credit_count) + granted + left
    if frontdoor not in awaited and credit_count:
        return max(allowed, min(max(share, 1), own + 1))
    return allowed


class ServedWork:
    """Add up the work of each frontdoor's attempts. One that was idle starts at the least of the others: it has no
    claim to the work that it did not ask for."""

    def __init__(self) -> None:
        self.work: dict[str, float] = {}

    def add(self, frontdoor: str, work: float, awaited: Collection[str]) -> None:
        """Add an attempt's work; changes state. `awaited`: the frontdoors that were, before the attempt came."""
        before = self.work.get(frontdoor, 0.0)
        if frontdoor not in awaited:
            before = max(before, min((self.work.get(name, 0.0) for name in awaited), default=before))
        self.work[frontdoor] = before + work

    def forget(self, frontdoor: str) -> None:
        """Forget a frontdoor; changes state."""
        self.work.pop(frontdoor, None)
