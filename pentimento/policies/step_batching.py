"""Choose the requests of the next forward pass, for the step engine and emulated devices.

Earliest deadline first (Liu and Layland 1973) over deadlines that age: a request without a deadline, or with a distant
one, is due `aging_limit_s` after its arrival. Due times never move, so a request that arrives after another's due time
cannot overtake it: a request's wait is bounded by the work due before it.

Batches are compatible groups: the most urgent request chooses the group, and the next urgent ones of the group join it.

Groups alternate (`GroupTurns`), since a step of a large image may last as long as hundreds of a small one's: with n
groups the most urgent one has 2 / (n + 1) of the device's time, every other one 1 / (n + 1).
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Urgency = tuple[float, int]

RESERVE_SHARE = 0.25
# Input images are fetched and decoded one after the other: one request's are prepared while the next one is sent.
PREPARING_SHARE = 0.25
# Seconds from a free batch slot to a request in it: journal, network, preparation.
ON_ITS_WAY_S = 0.05
# Groups with a remembered step time: more than a worker has at a time.
REMEMBERED_GROUPS = 256


class Candidate(Protocol):
    """Describe a request that could take a step now."""

    @property
    def key(self) -> Hashable:
        """Return the key of the group; requests with equal keys can share a forward pass."""

    @property
    def urgency(self) -> Urgency:
        """Return the due time (`due_at`) and the arrival number: unique, the smallest is the most urgent."""

    @property
    def running(self) -> bool:
        """Return whether the request has begun, with its own latents on the device."""


C = TypeVar("C", bound=Candidate)


def due_at(arrived_at: float, deadline: float | None, aging_limit_s: float) -> float:
    """Return the due time of a request, in seconds on the clock of `arrived_at`: its deadline, or the arrival plus the
    aging limit if that is earlier."""
    ages_at = arrived_at + aging_limit_s
    return ages_at if deadline is None else min(deadline, ages_at)


def reserve_count(batch_limit: int) -> int:
    """Return the number of attempts that a worker accepts beyond a full batch if they are due before one in it."""
    return math.ceil(batch_limit * RESERVE_SHARE)


def preparing_count(batch_limit: int) -> int:
    """Return the number of attempts that a worker accepts beyond a full batch to prepare their input images, so that no
    batch slot waits for them."""
    return math.ceil(batch_limit * PREPARING_SHARE)


def yields_in_s(steps_left: int, step_s: float, step_count: int = 1) -> float | None:
    """Return the seconds until a request with `steps_left` steps of `step_s` gives up its batch slot: `ON_ITS_WAY_S`
    before its end, so that the next request arrives just in time. If earlier, that one would wait at the worker, where
    it cannot be reordered, dropped or moved; if later, the batch would run with a gap. None if that moment is not
    within the next `step_count` steps."""
    after_s = steps_left * step_s - ON_ITS_WAY_S
    return max(after_s, 0.0) if after_s < step_count * step_s else None


@dataclass
class _Share:
    """Hold a group's seconds: device time saved up while other groups ran, and the length of its last step."""

    saved_s: float = 0.0
    step_s: float = 0.0

    @property
    def pays(self) -> bool:
        return self.saved_s > 0.0 and self.saved_s >= self.step_s


class GroupTurns:
    """Alternate groups by device time. While one of n groups runs, each other group saves 1 / n of that time. A group
    has a turn once its savings cover one of its steps; its turns use up the savings. A group without a measured step
    has its first turn immediately."""

    def __init__(self) -> None:
        self._shares: OrderedDict[Hashable, _Share] = OrderedDict()
        self._is_turn = False

    def choose(self, candidates: Sequence[C], limit_of: Callable[[Any], int], *, preempt: bool) -> list[C]:
        """Return the next batch: `choose_batch` within the group that has its turn. Without `preempt` a batch runs to
        its end, and no other group has a turn before."""
        first = choose_batch(candidates, limit_of, preempt=preempt)
        # If all candidates run, there is no other group.
        group = self._next_group(candidates, first[0].key) if preempt and len(first) < len(candidates) else []
        self._is_turn = bool(group)
        return choose_batch(group, limit_of, preempt=True) if group else first

    def ran(self, key: Hashable, step_s: float, candidates: Sequence[Candidate], step_count: int = 1) -> None:
        """Charge `step_count` steps of `step_s` seconds to the group `key` for its batch that just ran, chosen from
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
        """Return the candidates of the most urgent group, other than `first`, with enough savings; empty for none."""
        paying = [each for each in candidates if each.key != first and self._share(each.key).pays]
        if not paying:
            return []
        key = min(paying, key=lambda one: one.urgency).key
        return [candidate for candidate in paying if candidate.key == key]

    def _share(self, key: Hashable) -> _Share:
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = _Share()
        self._shares.move_to_end(key)
        return share


def choose_batch(candidates: Sequence[C], limit_of: Callable[[Any], int], *, preempt: bool) -> list[C]:
    """Return the requests of a forward pass, most urgent first: one key, at most `limit_of(key)` >= 1 requests.

    With `preempt` the most urgent requests run, even if others have begun. Without, a request that has begun runs to
    its end, and no request joins it ahead of a more urgent one in another group, which waits until this group is empty.
    """
    if not candidates:
        return []
    order = sorted(candidates, key=lambda one: (not preempt and not one.running, one.urgency))
    key = order[0].key
    members = [candidate for candidate in order if candidate.key == key]
    if not preempt:
        members = _without_overtakers(members, order, key)
    return members[: limit_of(key)]


def _without_overtakers(members: list[C], order: list[C], key: Hashable) -> list[C]:
    """Return the members that have begun or are more urgent than all waiting requests of other groups."""
    waiting_elsewhere = (other.urgency for other in order if other.key != key and not other.running)
    bound = min(waiting_elsewhere, default=(float("inf"), 0))
    return [member for member in members if member.running or member.urgency < bound]
