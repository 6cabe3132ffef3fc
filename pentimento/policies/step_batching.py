"""Whose step is next: a pure function of who is there. The step engine asks it, and so do emulated devices.

Earliest deadline first (Liu and Layland 1973) over deadlines that age: whoever names none, or a far one, is due
`patience_s` after it arrived. A due time never moves, so what arrives later than it never overtakes: the wait of any
request is bounded by the work that was due before it.

Batches are compatible groups: the most urgent request chooses the group, the next urgent ones of that group ride along.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar

Urgency = tuple[float, int]

RESERVE_SHARE = 0.25
# From a place that falls free to a request that takes it: journal, network, preparation.
ON_ITS_WAY_S = 0.05


class Candidate(Protocol):
    """A request that could take a step now."""

    @property
    def key(self) -> Hashable:
        """Requests of equal keys may share a forward pass."""
        ...

    @property
    def urgency(self) -> Urgency:
        """When it is due (`due_at`), then its number in the order of arrival; all different."""
        ...

    @property
    def running(self) -> bool:
        """Whether it has begun: a latent of its own is on the device."""
        ...


C = TypeVar("C", bound=Candidate)


def due_at(arrived_at: float, deadline: float | None, patience_s: float) -> float:
    """Seconds on the clock of `arrived_at`."""
    ages_at = arrived_at + patience_s
    return ages_at if deadline is None else min(deadline, ages_at)


def reserve_count(batch_limit: int) -> int:
    """Attempts that a worker takes beyond a full batch when they are due before one of those in it."""
    return math.ceil(batch_limit * RESERVE_SHARE)


def yielding_steps(step_s: float) -> int:
    """At so many steps before its end a picture yields its place, so that whoever takes it comes just in time: earlier,
    it would wait at the worker, where nobody can reorder, drop or move it; later, the batch would run with a gap."""
    return max(1, math.ceil(ON_ITS_WAY_S / step_s)) if step_s > 0.0 else 1


def choose_batch(candidates: Sequence[C], limit_of: Callable[[Any], int], *, preempt: bool) -> list[C]:
    """The requests of the next forward pass, most urgent first: equal keys, at most `limit_of(key)` >= 1 of them.

    With `preempt` the most urgent run, whoever ran before. Without, whoever has begun goes on to its end, and nobody
    joins ahead of a more urgent request of another group, which waits for this one to run empty.
    """
    if not candidates:
        return []
    order = sorted(candidates, key=_urgency if preempt else _begun_first)
    key = order[0].key
    members = [candidate for candidate in order if candidate.key == key]
    if not preempt:
        members = _without_overtakers(members, order, key)
    return members[: limit_of(key)]


def _urgency(candidate: Candidate) -> Urgency:
    return candidate.urgency


def _begun_first(candidate: Candidate) -> tuple[bool, Urgency]:
    return (not candidate.running, candidate.urgency)


def _without_overtakers(members: list[C], order: list[C], key: Hashable) -> list[C]:
    """Members that have begun, and those more urgent than every other group's waiting requests."""
    waiting_elsewhere = (other.urgency for other in order if other.key != key and not other.running)
    bound = min(waiting_elsewhere, default=(float("inf"), 0))
    return [member for member in members if member.running or member.urgency < bound]
