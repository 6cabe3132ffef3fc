"""The record of one request. Every runner (live, emulated, simulated) writes these; reports read nothing else."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """The outcome. LATE: answered after its deadline. DROPPED: ended by the dataplane, by prediction or at the
    deadline. REJECTED: never admitted. FAILED: an unintended error. CANCELLED: by the client."""

    COMPLETED = "completed"
    LATE = "late"
    DROPPED = "dropped"
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def answered(self) -> bool:
        """Return whether the client got an image."""
        return self in (Outcome.COMPLETED, Outcome.LATE)

    @property
    def violation(self) -> bool:
        """Whether it breaks its SLO. A request that its client cancelled neither keeps nor breaks one."""
        return self not in (Outcome.COMPLETED, Outcome.CANCELLED)


class StartKind(StrEnum):
    NOISE = "noise"
    LATENT = "latent"
    IMAGE = "image"
    RETRIEVAL = "retrieval"


class StageSpan(NamedTuple):
    """A part of a request's time (queue, embed, lookup, denoise, decode, score …); seconds on the run's clock."""

    name: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request's record. Times are seconds on the run's clock; `arrived_s` is the *intended* time, so that a late
    generator hides nothing. `deadline_s` is the SLO, in seconds from `arrived_s`, as in `workloads.Arrival`.

    `pool` answered the request (or ended it). `start_step` is its first step (0 from noise; K of a latent, k of an
    image, all of `steps` for retrieval). `deferred`: a cascade's light image was rejected. `quality` and
    `confidence` are None if unmeasured; `device_s` counts every device it held, wasted work too.
    """

    request_id: str
    tenant: str
    slo_class: str
    pool: str
    arrived_s: float
    deadline_s: float
    ended_s: float
    outcome: Outcome
    start: StartKind = StartKind.NOISE
    start_step: int = 0
    steps: int = 0
    model: str = ""
    deferred: bool = False
    confidence: float | None = None
    quality: float | None = None
    stages: tuple[StageSpan, ...] = ()
    device_s: float = 0.0

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.arrived_s
