"""Events and credits of a worker while it runs attempts. Mirrors pentimento.api.worker.v1."""

from dataclasses import dataclass, field

from pentimento.domain.adapters import Adapter, RejectedAdapter
from pentimento.domain.components import HeldComponent, TierSpeed
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import Attempt, CapturedEntries, StageTiming


@dataclass(frozen=True)
class RunningAttempt:
    request_id: str
    fencing_token: int
    step: int
    step_count: int
    orphaned: bool = False


@dataclass(frozen=True)
class ControlNetEndpoint:
    """Where a ControlNet of an attempt is served: its registry name, the replica's address, the digest of its
    weights."""

    name: str
    address: str
    controlnet_digest: str


@dataclass(frozen=True)
class LatentParallelPeer:
    """The worker that computes the other half of an attempt's guidance."""

    worker_id: str
    address: str


@dataclass(frozen=True)
class WorkerCredits:
    """Attempts that a worker can take, and its model and adapters.

    `credit_count` limits the attempts that the worker holds at once, without attempts that have yielded their place. It
    takes `reserve_count` more that are due before an attempt that it holds, which then steps back, and
    `preparing_count` more that came with images, which are fetched and decoded before the attempt holds a credit.
    `known_adapters` are the LoRAs that it can use, None when unchanged since its last message, and `rejected_adapters`
    the LoRAs that it found and cannot use. `resident_components` names components that need no loading.

    `component_changes` are the components with another tier than in its last message, or with `all_components` all
    that it holds. `tier_speeds` are empty when unchanged since its last message.
    """

    worker_id: str
    held: HeldModel
    credit_count: int
    running_count: int = 0
    queued_count: int = 0
    draining: bool = False
    capabilities: frozenset[Capability] = frozenset()
    resident_components: tuple[str, ...] = ()
    attempts: tuple[RunningAttempt, ...] = ()
    reserve_count: int = 0
    known_adapters: tuple[Adapter, ...] | None = None
    preparing_count: int = 0
    rejected_adapters: tuple[RejectedAdapter, ...] = ()
    component_changes: tuple[HeldComponent, ...] = ()
    all_components: bool = False
    tier_speeds: tuple[TierSpeed, ...] = ()


@dataclass(frozen=True)
class Started:
    worker_id: str
    first_step: int
    step_count: int


@dataclass(frozen=True)
class StepProgress:
    """`step` of `step_count` denoising steps are done; `preview` is a small PNG or empty."""

    step: int
    step_count: int
    preview: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class PlaceYielded:
    """Sent once: an attempt that arrives from now on finds this attempt's place in the batch free, and its credit."""


@dataclass(frozen=True)
class AttemptResult:
    """Result of an attempt.

    `bad_donor_reason` describes a defect of the object that the route starts from, empty without one. `lora_patch_step`
    is the first step taken with the request's LoRAs, None without LoRAs. `residual_wait_share` is the share, 0..1, of
    the synchronous steps after the first that passed waiting for residuals, None where none was seen. `thinned_steps`:
    from the first of these steps on no other step was taken.
    """

    attempt: Attempt
    image: bytes = field(repr=False)
    width_px: int
    height_px: int
    image_digest: str
    captured: CapturedEntries
    steps_run: int
    steps_saved: int
    model_digest: str
    worker_generation: int
    timings: tuple[StageTiming, ...] = ()
    device_seconds: float = 0.0
    energy_joules: float | None = None
    notes: tuple[str, ...] = ()
    bad_donor_reason: str = ""
    lora_patch_step: int | None = None
    residual_wait_share: float | None = None
    thinned_steps: tuple[int, ...] = ()


ExecuteEvent = Started | StepProgress | PlaceYielded | AttemptResult
