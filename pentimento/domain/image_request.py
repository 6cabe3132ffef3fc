"""Requests of clients and the events that they receive. Mirrors pentimento.api.image.v1; every edge shares it."""

import dataclasses
from dataclasses import dataclass, field
from enum import Enum

from pentimento.domain.cache import Neighbour
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import (
    WITHOUT_REUSE,
    CascadeStage,
    GenerationSpec,
    InitImage,
    ObjectReference,
    PlanVersion,
    Provenance,
    Route,
    SpecInput,
)
from pentimento.domain.jobs import RequestState, RequestSummary, WebhookDelivery
from pentimento.domain.online_quality import ReuseQuality
from pentimento.domain.safety import SafetyVerdict

# More LoRAs, ControlNets or inputs than any deployment allows: a message with more is refused before it is read.
MOST_PARTS = {"limit": 1024}


class CacheMode(Enum):
    OFF = "off"
    READ = "read"
    READ_WRITE = "read_write"
    SHARED = "shared"


class ImageFormat(Enum):
    PNG = "png"
    JPEG = "jpeg"
    WEBP = "webp"


@dataclass(frozen=True)
class AskedLora:
    """A LoRA by its registry name; `scale` None means 1."""

    name: str
    scale: float | None = None


@dataclass(frozen=True)
class AskedControlNet:
    """A ControlNet by its registry name, and the encoded image that it goes by. None means scale 1, from the schedule's
    beginning (0), to its end (1). `preprocessor`: a value of `Preprocessor`, "" if the image is the condition. `kind`:
    a value of `ControlKind` for a ControlNet-Union, else ""."""

    name: str
    conditioning_image: bytes = field(repr=False)
    conditioning_scale: float | None = None
    start_fraction: float | None = None
    end_fraction: float | None = None
    preprocessor: str = ""
    kind: str = ""


@dataclass(frozen=True)
class AskedImagePrompt:
    """An IP-Adapter by its name, and the encoded image that it reads; `scale` None means 1."""

    name: str
    image: bytes = field(repr=False)
    scale: float | None = None


@dataclass(frozen=True)
class ImageRequest:
    """A request as it was sent, before validation. None and "" take the model's or the deployment's default. `repr`
    holds no prompt.

    `binding_steps`: skip no step under any load; None means yes where `num_inference_steps` is set. `image_count`:
    images that differ by their seeds alone; None means 1. `encoding_quality` of a JPEG or WebP file, 0 to 100; None is
    the encoder's own. `clip_skip`: last layers of the CLIP text encoders to leave out, None for none. `prompt_syntax`:
    how both prompts state weights of words, a value of `PromptSyntax`. `feature_reuse`: steps may reuse deep features
    of earlier ones; None for the deployment's mode.
    """

    prompt: str = field(repr=False)
    negative_prompt: str = field(default="", repr=False)
    model: str = ""
    width_px: int | None = None
    height_px: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    scheduler: str = ""
    eta: float | None = None
    seed: int | None = None
    loras: tuple[AskedLora, ...] = field(default=(), metadata=MOST_PARTS)
    controlnets: tuple[AskedControlNet, ...] = field(default=(), metadata=MOST_PARTS)
    init_image: InitImage | None = None
    cache: CacheMode | None = None
    format: ImageFormat | None = None
    quality: float | None = None
    deadline_ms: int | None = None
    max_cost: float | None = None
    pin_ms: int | None = None
    binding_steps: bool | None = None
    image_count: int | None = None
    encoding_quality: int | None = None
    clip_skip: int | None = None
    prompt_syntax: str = ""
    feature_reuse: bool | None = None
    image_prompts: tuple[AskedImagePrompt, ...] = field(default=(), metadata=MOST_PARTS)


@dataclass(frozen=True)
class ReplayInput:
    """Bytes that a request was sent with, by their place in its spec: "init_image.image"."""

    field: str
    data: bytes = dataclasses.field(repr=False)


@dataclass(frozen=True)
class ReplayRequest:
    """Asks for the image of a completed request once more. `inputs`: the bytes that the request was sent with, which
    are kept only while it is pinned. `deadline_ms` None means the deployment's."""

    request_id: str
    inputs: tuple[ReplayInput, ...] = field(default=(), metadata=MOST_PARTS)
    deadline_ms: int | None = None

    @property
    def data_by_field(self) -> dict[str, bytes]:
        """Return the bytes by their place."""
        return {one.field: one.data for one in self.inputs}


@dataclass(frozen=True)
class Replay:
    """A replay's binding: the route of the first image and the digest of its bytes, "" where unknown."""

    route: Route
    image_digest: str


@dataclass(frozen=True)
class AdmittedStages:
    """The stages that a request was admitted to, in their order, at least one. `cascade`: the plan's that they are of,
    empty where they are of none; `planned`: the plan sent it there, and not its own wish."""

    stages: tuple[CascadeStage, ...]
    cascade: str = ""
    planned: bool = False


@dataclass(frozen=True)
class StartImage:
    """The previous stage's image, which an attempt started from and which is not kept, and the strength of the
    change, 0..1."""

    image: ObjectReference
    strength: float


@dataclass(frozen=True)
class ResolvedRequest:
    """A request with every default filled in. `quality` None means the deployment's; `cost` in pixel steps.

    `inputs`: the bytes of `spec` that are kept apart from it. `replay` None: the cache and the plan decide its route.
    `pin_ms`: how long its image stays replayable; 0 for no longer than others. `may_thin`: steps may be skipped,
    by its model's profile. `image_index`: its place among the images of one call. `encoding_quality` of a JPEG or WebP
    file, 0 to 100; None is the encoder's own. `admitted`: the stages that the journal has for it; None for its model's
    own pool alone. `feature_reuse`: as in ImageRequest. `prompt_verdict`: None if the prompt was not checked.
    """

    spec: GenerationSpec
    cache: CacheMode
    format: ImageFormat
    quality: float | None
    deadline_ms: int
    preview_interval_steps: int = 0
    inputs: tuple[SpecInput, ...] = ()
    replay: Replay | None = None
    pin_ms: int = 0
    may_thin: bool = False
    image_index: int = 0
    encoding_quality: int | None = None
    admitted: AdmittedStages | None = None
    feature_reuse: bool | None = None
    prompt_verdict: SafetyVerdict | None = None

    @property
    def cost(self) -> float:
        return float(self.spec.width_px * self.spec.height_px * self.spec.num_inference_steps)

    @property
    def cacheable(self) -> bool:
        """An image that started from the client's own image says nothing about its prompt."""
        reusable = self.spec.init_image is None and self.spec.scheduler not in WITHOUT_REUSE
        return self.cache is not CacheMode.OFF and reusable


@dataclass(frozen=True)
class Accepted:
    """`image_request_ids`: the id of each of several images, in the order of their indexes."""

    request_id: str
    replayed: bool = False
    image_request_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Routed:
    """`image_index`, here and below: the image's place in the request, from 0."""

    route: Route
    image_index: int = 0


@dataclass(frozen=True)
class Progress:
    """`step` of `step_count` are done; `preview` is a small PNG or empty. `width_px` and `height_px` are the whole
    image's. `saved_steps` are skipped, by reuse or under load."""

    step: int
    step_count: int
    preview: bytes = field(default=b"", repr=False)
    attempt_number: int = 1
    image_index: int = 0
    width_px: int = 0
    height_px: int = 0
    saved_steps: int = 0


@dataclass(frozen=True)
class Completed:
    request_id: str
    image: bytes = field(repr=False)
    format: ImageFormat
    width_px: int
    height_px: int
    provenance: Provenance
    image_index: int = 0


@dataclass(frozen=True)
class ImageFailed:
    """One of several images failed. `request_id` is its own."""

    request_id: str
    image_index: int
    error: PentimentoError


@dataclass(frozen=True)
class PinnedImage:
    """A pin of a request's image: it can be replayed until `expires_at_ms`. `size_bytes` count against the tenant's
    pinned bytes. `inputs_kept`: a replay need not send the request's inputs again."""

    request_id: str
    expires_at_ms: int
    size_bytes: int
    inputs_kept: bool


@dataclass(frozen=True)
class CellAddress:
    """Name a frontdoor among several over the same workers, and its address."""

    name: str
    address: str


@dataclass(frozen=True)
class TenantCells:
    """Hold the cell of a tenant's new requests, without a name in a suite without cells, and the cells that may hold
    earlier ones."""

    tenant: str
    home: CellAddress
    formers: tuple[CellAddress, ...] = ()


GenerateEvent = Accepted | Routed | Progress | Completed | ImageFailed


@dataclass(frozen=True)
class RequestStatus:
    """State of a request. `completed` only in that state; the error only in FAILED, CANCELLED and EXPIRED.

    `images`: each image of a request for several, without its bytes. `webhook`: for a job that named one. `progress`
    while the request runs, without a preview; None before its first step.
    """

    request_id: str
    state: RequestState
    completed: Completed | None = None
    error_reason: str = ""
    error_message: str = ""
    images: "tuple[RequestStatus, ...]" = ()
    summary: RequestSummary | None = None
    webhook: WebhookDelivery | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Explanation:
    """The route that a request would take now, by the plan in force, and why. `plan_version` and `allocator` are the
    plan's; `waiting_count`: requests that wait in the pool."""

    route: Route
    plan_version: PlanVersion
    pool: str
    predicted_wait_ms: float
    # Thresholds of reuse for the route's model; none where the cache cannot be asked.
    reuse_quality: tuple[ReuseQuality, ...] = ()
    allocator: str = ""
    admission_rate: float = 1.0
    waiting_count: int = 0
    reasons: tuple[str, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()


@dataclass(frozen=True)
class ModelInfo:
    """A model that the deployment serves, with the limits its requests must keep; sizes in pixels."""

    name: str
    family: str
    digest: str
    default_width_px: int
    default_height_px: int
    size_multiple_px: int
    max_size_px: int
    default_steps: int
    max_steps: int
    default_guidance_scale: float
    schedulers: tuple[str, ...]
    licence: str
    ready_worker_count: int
