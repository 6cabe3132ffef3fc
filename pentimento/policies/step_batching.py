"""Whose step is next: a pure function of who is there. The step engine asks it, and so do emulated devices.

Earliest deadline first (Liu and Layland 1973) over deadlines that age: whoever names none, or a far one, is due
`aging_limit_s` after it arrived. A due time never moves, so what arrives later than it never overtakes: the wait of any
request is bounded by the work that was due before it.

Batches are compatible groups: the most urgent request chooses the group, the next urgent ones of that group ride along.

Groups take turns (`GroupTurns`), since a step of a large picture may last as long as hundreds of a small one's: with n
groups the most urgent one has 2 / (n + 1) of the device's time, every other one 1 / (n + 1).
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Urgency = tuple[float, int]

RESERVE_SHARE = 0.25
# Images are fetched and decoded one after the other: while one picture's are, the next one's are on their way.
PREPARING_SHARE = 0.25
# From a place that falls free to a request that takes it: journal, network, preparation.
ON_ITS_WAY_S = 0.05
# Groups whose step time is remembered: more than a worker has at once.
REMEMBERED_GROUPS = 256


class Candidate(Protocol):
    """A request that could take a step now."""

    @property
    def key(self) -> Hashable:
        """What must be equal for requests to share a forward pass."""
        ...

    @property
    def urgency(self) -> Urgency:
        """When it is due (`due_at`), then its number in the order of arrival; all different, the smallest first."""
        ...

    @property
    def running(self) -> bool:
        """Whether it has begun: a latent of its own is on the device."""
        ...


C = TypeVar("C", bound=Candidate)


def due_at(arrived_at: float, deadline: float | None, aging_limit_s: float) -> float:
    """Return when a request is due, in seconds on the clock of `arrived_at`: its deadline, or the arrival plus the
    aging limit where that is earlier."""
    ages_at = arrived_at + aging_limit_s
    return ages_at if deadline is None else min(deadline, ages_at)


def reserve_count(batch_limit: int) -> int:
    """Return how many attempts a worker takes beyond a full batch, when they are due before one of those in it."""
    return math.ceil(batch_limit * RESERVE_SHARE)


def preparing_count(batch_limit: int) -> int:
    """Return how many attempts a worker takes beyond a full batch to prepare the images that they came with, so that no
    place of the batch waits for those."""
    return math.ceil(batch_limit * PREPARING_SHARE)


def yields_in_s(steps_left: int, step_s: float, step_count: int = 1) -> float | None:
    """Return in how many seconds a picture yields its place in the batch, which has `steps_left` steps of `step_s`
    before it: `ON_ITS_WAY_S` before its end. Whoever takes the place then comes just in time. Earlier, it would wait at
    the worker, where nobody can reorder, drop or move it; later, the batch would run with a gap. None where the end of
    the next `step_count` steps comes first."""
    after_s = steps_left * step_s - ON_ITS_WAY_S
    return max(after_s, 0.0) if after_s < step_count * step_s else None


@dataclass
class _Share:
    """Of one group, in seconds: device time it has saved up while others ran, and what its last step took."""

    saved_s: float = 0.0
    step_s: float = 0.0

    @property
    def pays(self) -> bool:
        return self.saved_s > 0.0 and self.saved_s >= self.step_s


class GroupTurns:
    """Turns of groups by device time. Whose turn it is among groups, at the device time each has had. While one of n
    groups runs, each of the others saves up 1 / n of that time; it has a turn once that pays for a step of its own, and
    its turns use up what it saved. A group whose step was never measured has its first turn at once."""

    def __init__(self) -> None:
        self._shares: OrderedDict[Hashable, _Share] = OrderedDict()
        self._is_turn = False

    def choose(self, candidates: Sequence[C], limit_of: Callable[[Any], int], *, preempt: bool) -> list[C]:
        """Return the batch to run next: `choose_batch`, of the group whose turn it is. Without `preempt` a batch runs
        to its end, and no group has a turn before it."""
        first = choose_batch(candidates, limit_of, preempt=preempt)
        # Where all run there is no other group.
        group = self._next_group(candidates, first[0].key) if preempt and len(first) < len(candidates) else []
        self._is_turn = bool(group)
        return choose_batch(group, limit_of, preempt=True) if group else first

    def ran(self, key: Hashable, step_s: float, candidates: Sequence[Candidate], step_count: int = 1) -> None:
        """Charge `step_count` steps of `step_s` seconds to the group `key`, whose batch just ran; it was chosen from
        `candidates`."""
        share, seconds = self._share(key), step_count * step_s
        share.step_s = step_s
        if self._is_turn:
            share.saved_s -= seconds
        others = {candidate.key for candidate in candidates if candidate.key != key}
        for other in others:
            self._share(other).saved_s += seconds / (len(others) + 1)
        while len(self._shares) > REMEMBERED_GROUPS:
            self._shares.popitem(last=False)

    def _next_group(self, candidates: Sequence[C], first: Hashable) -> list[C]:
        """Of the groups that can pay, other than the most urgent request's, the one whose own is most urgent."""
        paying = [each for each in candidates if each.key != first and self._share(each.key).pays]
        if not paying:
            return []
        key = min(paying, key=_urgency).key
        return [candidate for candidate in paying if candidate.key == key]

    def _share(self, key: Hashable) -> _Share:
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = _Share()
        self._shares.move_to_end(key)
        return share


def choose_batch(candidates: Sequence[C], limit_of: Callable[[Any], int], *, preempt: bool) -> list[C]:
    """Return the requests of a forward pass, most urgent first: equal keys, at most `limit_of(key)` >= 1 of them.

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
