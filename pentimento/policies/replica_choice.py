"""Which replica of the ControlNet service a stream is opened on (Katz, section 5: ControlNets scale on their own, and
several of one picture compute at the same time).

A replica is told by the streams that it holds: each computes once a step, one after the other. Loading a ControlNet and
waiting for another one of the same picture are counted in such streams too, so that a replica that has just come gets
work as soon as the others have some, and then holds what it was given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

# What having to load a ControlNet first counts as, in open streams: it happens once, a stream waits in each step.
LOAD_STREAMS = 1
# What each other ControlNet of the same picture there counts as, beside its stream: both always compute at once.
SAME_PICTURE_STREAMS = 2


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a replica told last: the streams that it takes at once and those that it holds, and the names of the
    ControlNets that need not be loaded."""

    credit_count: int
    open_stream_count: int
    draining: bool = False
    resident: frozenset[str] = frozenset()


class Hearing(IntEnum):
    """Whether a replica is heard from: never so far, now, or not any more."""

    NEVER = 0
    NOW = 1
    LOST = 2


@dataclass(frozen=True, slots=True)
class ReplicaCandidate:
    """A replica as one stream sees it. `load` counts where it is heard from now. `opening_count`: streams that were
    sent there and that it cannot have told of; `same_picture_count`: other ControlNets of the picture there. `failed`:
    it lost a step of this stream; `refused`: it had no credit just now."""

    address: str
    hearing: Hearing = Hearing.NEVER
    load: ReplicaLoad = ReplicaLoad(0, 0)
    opening_count: int = 0
    same_picture_count: int = 0
    failed: bool = False
    refused: bool = False


class _Tier(IntEnum):
    """Replicas of a later one are asked only where there is none of an earlier one."""

    FREE = 0
    UNHEARD = 1
    FAILED = 2
    FULL = 3
    LOST = 4
    DRAINING = 5


def best_replica(candidates: Sequence[ReplicaCandidate], controlnet: str) -> str:
    """Return the address to open a stream for the ControlNet on; of equals the first. ValueError for no candidates."""
    return min(candidates, key=lambda candidate: (_tier(candidate), _cost(candidate, controlnet))).address


def _tier(candidate: ReplicaCandidate) -> _Tier:
    if candidate.hearing is Hearing.LOST:
        return _Tier.LOST
    if candidate.hearing is Hearing.NOW and candidate.load.draining:
        return _Tier.DRAINING
    if candidate.refused or (candidate.hearing is Hearing.NOW and _free_count(candidate) <= 0):
        return _Tier.FULL
    if candidate.failed:
        return _Tier.FAILED
    return _Tier.FREE if candidate.hearing is Hearing.NOW else _Tier.UNHEARD


def _free_count(candidate: ReplicaCandidate) -> int:
    return candidate.load.credit_count - candidate.load.open_stream_count - candidate.opening_count


def _cost(candidate: ReplicaCandidate, controlnet: str) -> int:
    streams = candidate.opening_count + SAME_PICTURE_STREAMS * candidate.same_picture_count
    if candidate.hearing is not Hearing.NOW:
        return streams
    load = candidate.load
    return streams + load.open_stream_count + (0 if controlnet in load.resident else LOAD_STREAMS)
