"""Choose the replica of the ControlNet service for a new stream (Katz, section 5: ControlNets scale separately, and
several of one image compute at the same time).

The cost of a replica is its open streams: each computes once per step, one after the other. Loading a ControlNet and
waiting for another one of the same image count as streams too, so that a new replica receives work as soon as the
others have some, and then keeps its ControlNets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

# Cost of loading a ControlNet, in open streams: a load happens once, while a stream waits in each step.
LOAD_STREAMS = 1
# Extra cost of another ControlNet of the same image there, in open streams: both always compute at the same time.
SAME_PICTURE_STREAMS = 2


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Hold a replica's last report: its limit of streams (`credit_count`), its open streams, and the names of its
    loaded ControlNets (`resident`)."""

    credit_count: int
    open_stream_count: int
    draining: bool = False
    resident: frozenset[str] = frozenset()


class Hearing(IntEnum):
    """State whether a replica reports: never so far, now, or no longer."""

    NEVER = 0
    NOW = 1
    LOST = 2


@dataclass(frozen=True, slots=True)
class ReplicaCandidate:
    """Describe a replica for one stream. `load` counts only while the replica reports (`Hearing.NOW`).
    `opening_count`: streams sent there but not in its report yet; `same_picture_count`: other ControlNets of the image
    there. `failed`: it lost a step of this stream; `refused`: it just had no credit."""

    address: str
    hearing: Hearing = Hearing.NEVER
    load: ReplicaLoad = ReplicaLoad(0, 0)
    opening_count: int = 0
    same_picture_count: int = 0
    failed: bool = False
    refused: bool = False


class _Tier(IntEnum):
    """Order replicas: a later tier is used only if the earlier ones are empty."""

    FREE = 0
    UNHEARD = 1
    FAILED = 2
    FULL = 3
    LOST = 4
    DRAINING = 5


def best_replica(candidates: Sequence[ReplicaCandidate], controlnet: str) -> str:
    """Return the address for a stream of the ControlNet; of equals the first. Raises ValueError without candidates."""
    return min(candidates, key=lambda candidate: (_tier(candidate), _cost(candidate, controlnet))).address


def _tier(candidate: ReplicaCandidate) -> _Tier:
    if candidate.hearing is Hearing.LOST:
        return _Tier.LOST
    if candidate.hearing is Hearing.NOW and candidate.load.draining:
        return _Tier.DRAINING
    free_count = candidate.load.credit_count - candidate.load.open_stream_count - candidate.opening_count
    if candidate.refused or (candidate.hearing is Hearing.NOW and free_count <= 0):
        return _Tier.FULL
    if candidate.failed:
        return _Tier.FAILED
    return _Tier.FREE if candidate.hearing is Hearing.NOW else _Tier.UNHEARD


def _cost(candidate: ReplicaCandidate, controlnet: str) -> int:
    streams = candidate.opening_count + SAME_PICTURE_STREAMS * candidate.same_picture_count
    if candidate.hearing is not Hearing.NOW:
        return streams
    load = candidate.load
    return streams + load.open_stream_count + (0 if controlnet in load.resident else LOAD_STREAMS)
