"""Replicas, the models they hold, and the plan. Mirrors pentimento.api.controller.v1 and pentimento.api.worker.v1."""

from dataclasses import dataclass
from enum import Enum

from pentimento.domain.adapters import Adapter
from pentimento.domain.components import HeldComponent, StoredBytes, TierSpeed
from pentimento.domain.demand import PoolDemand
from pentimento.domain.generation import PlanVersion
from pentimento.domain.weights import ComponentWeights, ModelChange, ShortModel

# Models, adapters and costs that one replica may report; the controller refuses more.
MAX_TOLD_COUNT = 1024
# Seconds of a run that plans can be made with: a microsecond to eleven days. Sums and quotients of such stay finite.
MIN_COST_S, MAX_COST_S = 1e-6, 1e6
# Equal parts of 0..1 that confidences are counted by.
CONFIDENCE_BINS = 20


class ReplicaKind(Enum):
    FRONTDOOR = "frontdoor"
    EMBEDDER = "embedder"
    VECTORDB_GATEWAY = "vectordb_gateway"
    CONTROLNET = "controlnet_svc"
    UNET_WORKER = "unet_worker"
    DISCRIMINATOR = "discriminator"
    IMAGE_EMBEDDER = "image_embedder"


class Capability(Enum):
    LATENT_START = "latent_start"
    IMAGE_START = "image_start"
    LORA = "lora"
    CONTROLNET = "controlnet"
    LATENT_PARALLEL = "latent_parallel"
    STEP_BATCHING = "step_batching"
    PREVIEW = "preview"
    EMULATED = "emulated"
    UPLOADED_LORA = "uploaded_lora"
    IP_ADAPTER = "ip_adapter"


@dataclass(frozen=True)
class HeldModel:
    """A model as a worker really holds it; sizes in pixels. `step_s`: seconds of a denoising step of one image of the
    default size and guidance, measured before the worker served; `reused_step_share`: of one with reused deep features
    ÷ of a whole one. Both 0 where unknown."""

    model: str
    model_digest: str
    worker_generation: int
    vae_digest: str
    scheduler_digest: str
    prediction_type: str
    family: str
    default_width_px: int
    default_height_px: int
    size_multiple_px: int
    max_size_px: int
    default_steps: int
    max_steps: int
    default_guidance_scale: float
    schedulers: tuple[str, ...]
    licence: str = ""
    step_s: float = 0.0
    reused_step_share: float = 0.0


@dataclass(frozen=True)
class ModelCost:
    """Cost of a model on a device. `run_s`: (batch size, seconds of that many requests together from noise to their
    last latents). `memory_bytes` held; `load_s` until a device that held another model holds this one. `fixed_s` of
    a run are spent once per request before its first step, the rest on `step_count` steps; `finish_s` (decoding,
    encoding) comes after them, in parallel with the next batch. 0 where unknown. `estimated`: from a step of one image
    that a worker measured before it served, then in its requests; any profile replaces it."""

    model: str
    run_s: tuple[tuple[int, float], ...]
    memory_bytes: int = 0
    load_s: float = 0.0
    step_count: int = 0
    fixed_s: float = 0.0
    finish_s: float = 0.0
    estimated: bool = False


@dataclass(frozen=True)
class MeasuredDeferral:
    """f(t) of a cascade `light>heavy` by its discriminator: the share of light images with a confidence up to each
    threshold, on prompts that it was not trained on. `uninformative` says why it carries no information; empty if it
    does."""

    discriminator: str
    discriminator_digest: str
    thresholds: tuple[float, ...]
    shares: tuple[float, ...]
    uninformative: str = ""


@dataclass(frozen=True)
class Replica:
    """A process that registers with the controller. `address` is `unix:/path` or `host:port`; `generation` tells apart
    the starts of one instance. `costs` are those of the available models. `adapters`: LoRAs that a worker can use,
    ControlNets of a ControlNet replica. `deferrals`: f(t) of a discriminator's cascades. `held_model_digest`: of the
    first resident model; empty where unknown. `weights`: that model's; `short_models`: do not fit a worker's memory.
    `change`: a worker's last one. `stored`: bytes that loads of its components would read, by tier;
    `adapter_memory_bytes`: for a worker's LoRAs or a service's ControlNets, 0 where unknown."""

    instance_id: str
    kind: ReplicaKind
    address: str
    generation: int
    build_version: str = ""
    device: str = ""
    device_memory_bytes: int = 0
    available_models: tuple[str, ...] = ()
    resident_models: tuple[str, ...] = ()
    capabilities: frozenset[Capability] = frozenset()
    costs: tuple[ModelCost, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    held_model_digest: str = ""
    deferrals: tuple[MeasuredDeferral, ...] = ()
    weights: tuple[ComponentWeights, ...] = ()
    short_models: tuple[ShortModel, ...] = ()
    change: ModelChange | None = None
    stored: tuple[StoredBytes, ...] = ()
    adapter_memory_bytes: int = 0

    @property
    def held_model(self) -> str:
        """The model that a worker holds, which stands in front of its resident LoRAs; empty where it holds none."""
        return self.resident_models[0] if self.resident_models else ""

    @property
    def models(self) -> tuple[str, ...]:
        """The models that a worker can hold, including its held model; no LoRAs."""
        return tuple(dict.fromkeys((*self.available_models, *self.resident_models[:1])))


@dataclass(frozen=True)
class WorkerAssignment:
    """Assignment of a model to a worker. `max_batch_size` 0: the largest that fits; `prefetch`: names of LoRAs."""

    worker_id: str
    address: str
    model: str
    generation: int
    max_batch_size: int = 0
    prefetch: tuple[str, ...] = ()


@dataclass(frozen=True)
class RouteShare:
    """The share of the requests of one kind of start that a pool takes first. `cascade` names the plan's cascade
    that they go through, which begins with that pool; empty where the pool's image is final."""

    route: str
    share: float
    cascade: str = ""


@dataclass(frozen=True)
class PoolPlan:
    """Workers and routes of a pool. `thins`: the plan relies on the pool to skip as many steps as allowed."""

    pool: str
    model: str
    worker_ids: tuple[str, ...]
    routes: tuple[RouteShare, ...] = ()
    thins: bool = False


@dataclass(frozen=True)
class StartThreshold:
    """The confidence, 0..1, that an image from a kind of start must exceed to be final."""

    start: str
    confidence: float


@dataclass(frozen=True)
class StagePlan:
    """A stage of a cascade. `discriminator`: the cascade `light>heavy` as discriminators know it; empty for the pair of
    its model and the next. `discriminator_digest`: the discriminator that the thresholds were planned with; scores of
    others do not count. Empty for any. Images from a kind of start that `thresholds` does not name are not scored: they
    are good enough. `reuse_share` (0..1) of the next stage's steps are saved because it starts from this stage's image;
    0: it starts from noise."""

    pool: str
    thresholds: tuple[StartThreshold, ...] = ()
    discriminator: str = ""
    reuse_share: float = 0.0
    discriminator_digest: str = ""


@dataclass(frozen=True)
class CascadePlan:
    """Stages in order, light first. Images of the last stage are not scored."""

    cascade: str
    stages: tuple[StagePlan, ...]


@dataclass(frozen=True)
class CachePlan:
    """Rules of admission to the cache and of its use. `admits`: kinds of start that may enter with their images and
    latents; `admits_light`: whether a cascade's earlier stages may. `alpha`: the share of the from-scratch quality that
    hits must keep where a request does not say; None leaves it to the gateway. `bias` moves every K of the selector by
    that many tenths of the steps (NIRVANA, section 5.3.1). `eviction` names the eviction rule; empty: the gateway's
    own."""

    admits: tuple[str, ...] = ("noise", "latent", "image")
    admits_light: bool = True
    alpha: float | None = None
    bias: int = 0
    eviction: str = ""


@dataclass(frozen=True)
class ComponentPlacement:
    """The replicas of a kind that are to hold a component: a ControlNet, the discriminator of a cascade, an encoder.
    Models of workers are in the assignments."""

    kind: ReplicaKind
    component: str
    instance_ids: tuple[str, ...]


@dataclass(frozen=True)
class ServiceEndpoint:
    """Where a service is reached. `available_models`: what it serves, as its replica says; of a discriminator the
    cascades, `light>heavy`."""

    kind: ReplicaKind
    instance_id: str
    address: str
    available_models: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdapterPlacement:
    """The replicas that can serve an adapter and the replicas that hold it now, ordered by instance id."""

    adapter: Adapter
    instance_ids: tuple[str, ...]
    resident_instance_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class RegisteredDigest:
    """The digest that the model repository has for a name."""

    model: str
    digest: str


@dataclass(frozen=True)
class Plan:
    """Intent; workers report the truth. `drops_late`: drop requests that are predicted to miss their deadline.
    `placements`: adapters as the replicas reported them; `components`: components that services are to hold. `notes`:
    models left unplanned, and why. `registered`: workers that hold another digest under one of the names get no
    requests. `moves_models`: workers load the models assigned to them; otherwise the assignments say what they hold."""

    version: PlanVersion
    assignments: tuple[WorkerAssignment, ...] = ()
    pools: tuple[PoolPlan, ...] = ()
    admission_rate: float = 1.0
    endpoints: tuple[ServiceEndpoint, ...] = ()
    allocator: str = ""
    drops_late: bool = True
    placements: tuple[AdapterPlacement, ...] = ()
    cascades: tuple[CascadePlan, ...] = ()
    cache: CachePlan = CachePlan()
    components: tuple[ComponentPlacement, ...] = ()
    notes: tuple[str, ...] = ()
    registered: tuple[RegisteredDigest, ...] = ()
    moves_models: bool = True

    def assignment_of(self, worker_id: str) -> WorkerAssignment | None:
        """Return what the plan assigns to the worker, None for nothing."""
        return next((one for one in self.assignments if one.worker_id == worker_id), None)

    def placed_on(self, kind: ReplicaKind, instance_id: str) -> tuple[str, ...]:
        """Return the components that a replica is to hold, in the plan's order."""
        return tuple(one.component for one in self.components if one.kind is kind and instance_id in one.instance_ids)


@dataclass(frozen=True)
class ReplicaLease:
    """The answer to a registration: how long silence is forgiven and how often to report."""

    lease_ms: int
    report_interval_ms: int
    leader_epoch: int


@dataclass(frozen=True)
class ReplicaReport:
    """A heartbeat. Counts are totals since the replica's start, `busy_share` is 0..1 since the last report.
    `plan_version`: of the plan that the replica follows. `component_changes`: components that came to its disk or
    left it since the last answered report, or all components with `all_components`. `load_speeds`: as
    its loads of models or ControlNets measured them; `lora_speeds`: as a worker's loads of LoRAs. `edge_count`: edges
    that called it in the last minute; `edge_call_count`: their running calls."""

    instance_id: str
    generation: int
    resident_models: tuple[str, ...] = ()
    queue_length: int = 0
    running_count: int = 0
    busy_share: float = 0.0
    completed_count: int = 0
    failed_count: int = 0
    demand: tuple[PoolDemand, ...] = ()
    plan_version: PlanVersion | None = None
    draining: bool = False
    held_model_digest: str = ""
    component_changes: tuple[HeldComponent, ...] = ()
    all_components: bool = False
    load_speeds: tuple[TierSpeed, ...] = ()
    lora_speeds: tuple[TierSpeed, ...] = ()
    edge_count: int = 0
    edge_call_count: int = 0


@dataclass(frozen=True)
class ReplicaStatus:
    """A replica and its last report, as the controller sees them; the age in milliseconds."""

    replica: Replica
    last_report_age_ms: int
    live: bool
    draining: bool = False
    queue_length: int = 0
    running_count: int = 0
    busy_share: float = 0.0
    completed_count: int = 0
    failed_count: int = 0


@dataclass(frozen=True)
class UnplannedModel:
    """A model that workers with that kind of device could hold and that the policy leaves out, by a reason of the
    catalogue; with `worker_id`, of that worker alone."""

    model: str
    device: str
    reason: str
    worker_id: str = ""


@dataclass(frozen=True)
class SteeredCount:
    """The workers of a model that a policy moves towards: `target_count` by the load, `damped_count` after damping,
    `planned_count` in the plan."""

    model: str
    target_count: int
    damped_count: float
    planned_count: int


@dataclass(frozen=True)
class FollowedDeferral:
    """f(t) of a cascade `light>heavy`, as the policy follows it (`shares`) and as it was measured before."""

    cascade: str
    thresholds: tuple[float, ...]
    shares: tuple[float, ...]
    measured_shares: tuple[float, ...]

    def __str__(self) -> str:
        """Return both shares at the threshold at which they differ most."""
        points = zip(self.thresholds, self.shares, self.measured_shares, strict=True)
        at, share, measured = max(points, key=lambda point: abs(point[1] - point[2]))
        return f"{self.cascade}: {share:.0%} of images have a confidence up to {at:.2f}, {measured:.0%} as measured"


@dataclass(frozen=True)
class Fleet:
    """`slo_s`: SLO of a request that the policy plans by; 0 for none. `steered`: None for a policy that does not move
    step by step. `deferrals`: of the cascades that the policy plans."""

    replicas: tuple[ReplicaStatus, ...]
    plan: Plan
    leader_epoch: int
    unplanned: tuple[UnplannedModel, ...] = ()
    slo_s: float = 0.0
    steered: SteeredCount | None = None
    deferrals: tuple[FollowedDeferral, ...] = ()
