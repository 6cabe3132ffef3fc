"""What Execute asks for, and what comes of it, as values."""

from dataclasses import dataclass

from pentimento.domain.execution import AttemptResult, ControlNetEndpoint, LatentParallelPeer
from pentimento.domain.generation import Attempt, CacheGrant, GenerationSpec, Route
from pentimento.wire.tensors import WireTensor


@dataclass(frozen=True)
class ExecuteOrder:
    """ExecuteRequest in domain values; `deadline_remaining_ms` 0 means none. `notes` are what
    there is to say of it so far, for the result's."""

    attempt: Attempt
    spec: GenerationSpec
    route: Route
    worker_generation: int
    deadline_remaining_ms: int = 0
    preview_interval_steps: int = 0
    cache_grant: CacheGrant | None = None
    image_format: str = "png"
    return_latents: bool = False
    # Who computes the other half of the guidance; None for nobody.
    peer: LatentParallelPeer | None = None
    # Where the spec's ControlNets are served; several of one name are replicas, to be tried in this order.
    controlnet_endpoints: tuple[ControlNetEndpoint, ...] = ()
    notes: tuple[str, ...] = ()
    # In which the attempt's epoch was claimed.
    journal_id: str = ""


@dataclass(frozen=True)
class AttemptOutcome:
    """A finished attempt; the final latents only where they were asked for."""

    result: AttemptResult
    final_latents: WireTensor | None = None
