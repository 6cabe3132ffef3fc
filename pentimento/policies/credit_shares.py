"""Divide a worker's credits between the frontdoors that it serves, by max-min fairness.

    credits_of("a", 4, {"a": 2}, {}, ("a",))                    # 4: no other frontdoor has attempts
    credits_of("b", 4, {"a": 4}, {"a": 9.0}, ("a",))            # 1: beyond a full worker: whether b has requests
    credits_of("a", 4, {"a": 4, "b": 1}, {"a": 9.0}, ("a", "b"))  # 2: two of its attempts end before it sends another
    credits_of("b", 4, {"a": 4, "b": 1}, {"a": 9.0}, ("a", "b"))  # 1: until one of the attempts of a ends

A frontdoor is awaited from its first attempt on, until an offered credit stays unused for a moment. Awaited frontdoors
share what others do not hold; where the division has a rest, the least served one has one more, so that they alternate.
A frontdoor that is not awaited may always hold one attempt more than it has, up to its share: the worker cannot know
otherwise that requests wait there.
"""

from collections.abc import Collection, Mapping


def credits_of(
    frontdoor: str, credit_count: int, held: Mapping[str, int], served: Mapping[str, float], awaited: Collection[str]
) -> int:
    """Return the attempts that the frontdoor may hold, of a worker with `credit_count` credits. `held`: attempts by
    frontdoor; `served`: the work of its attempts so far (see `ServedWork`)."""
    order = sorted({*awaited, frontdoor}, key=lambda name: (served.get(name, 0.0), name))
    others = sum(count for name, count in held.items() if name not in awaited and name != frontdoor)
    share, rest = divmod(max(credit_count - others, 0), len(order))
    own, free, allowed = held.get(frontdoor, 0), max(credit_count - sum(held.values()), 0), 0
    for number, name in enumerate(order):
        target = share + (number < rest)
        due = min(max(target - held.get(name, 0), 0), free)
        free -= due
        if name == frontdoor:
            allowed = min(own, target) + due
            if name not in awaited and credit_count:
                allowed = max(allowed, min(max(target, 1), own + 1))
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
