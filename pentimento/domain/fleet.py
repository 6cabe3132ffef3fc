"""Replicas, the models they hold, and the plan. Mirrors pentimento.controller.v1 and pentimento.worker.v1."""

from dataclasses import dataclass
from enum import Enum

from pentimento.domain.generation import PlanVersion


class ReplicaKind(Enum):
    FRONTDOOR = "frontdoor"
    EMBEDDER = "embedder"
    VECTORDB_GATEWAY = "vectordb_gateway"
    CONTROLNET = "controlnet_svc"
    UNET_WORKER = "unet_worker"
    DISCRIMINATOR = "discriminator"


class Capability(Enum):
    LATENT_START = "latent_start"
    IMAGE_START = "image_start"
    LORA = "lora"
    CONTROLNET = "controlnet"
    LATENT_PARALLEL = "latent_parallel"
    STEP_BATCHING = "step_batching"
    PREVIEW = "preview"
    EMULATED = "emulated"


@dataclass(frozen=True)
class HeldModel:
    """A model as a worker really holds it; sizes in pixels."""

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


@dataclass(frozen=True)
class Replica:
    """`address` is `unix:/path` or `host:port`; `generation` tells apart the starts of one instance."""

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


@dataclass(frozen=True)
class WorkerAssignment:
    worker_id: str
    address: str
    model: str
    generation: int
    max_batch_size: int = 1
    prefetch: tuple[str, ...] = ()


@dataclass(frozen=True)
class RouteShare:
    route: str
    share: float


@dataclass(frozen=True)
class PoolPlan:
    pool: str
    model: str
    worker_ids: tuple[str, ...]
    confidence_threshold: float = 0.0
    routes: tuple[RouteShare, ...] = ()


@dataclass(frozen=True)
class ServiceEndpoint:
    kind: ReplicaKind
    instance_id: str
    address: str


@dataclass(frozen=True)
class Plan:
    """Intent; what workers report is the truth."""

    version: PlanVersion
    assignments: tuple[WorkerAssignment, ...] = ()
    pools: tuple[PoolPlan, ...] = ()
    admission_rate: float = 1.0
    endpoints: tuple[ServiceEndpoint, ...] = ()
    allocator: str = ""
