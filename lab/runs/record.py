"""What became of one request. Every runner (live, emulated, simulated) writes these; reports read nothing else."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Outcome(StrEnum):
    """How it ended. LATE was answered after its deadline; DROPPED was given up by the dataplane, by prediction or at
    the deadline; REJECTED was never admitted; FAILED is an error that was no choice; CANCELLED the client's own."""

    COMPLETED = "completed"
    LATE = "late"
    DROPPED = "dropped"
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def answered(self) -> bool:
        """Whether the client got a picture."""
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
    """Times are seconds on the run's clock; `arrived_s` is when it was *meant* to be sent, so that a generator that
    falls behind hides nothing. `deadline_s` is the SLO, in seconds from `arrived_s`, as in `workloads.Arrival`.

    `pool` is the one that answered (or where it ended). `start_step` is the step it entered at (0 from noise; K of a
    latent, k of an image, all of `steps` for retrieval). `deferred` says that a cascade's light picture was refused.
    `quality` and `confidence` are None where nobody measured; `device_s` counts every device it held, wasted work too.
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
