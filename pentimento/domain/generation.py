"""Specs, starts, routes, attempts and provenance of images. Mirrors pentimento.api.generation.v1."""

from dataclasses import dataclass, field
from enum import Enum

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.prompt_syntax import PromptSyntax, plain_prompt
from pentimento.domain.safety import SafetyVerdict
from pentimento.domain.thinned_steps import bridge_steps


class Scheduler(Enum):
    DDIM = "ddim"
    EULER = "euler"
    EULER_ANCESTRAL = "euler_ancestral"
    DPM_SOLVER_PP_2M = "dpmpp_2m"
    FLOW_MATCH_EULER = "flow_match_euler"
    DPM_SOLVER_PP_2M_SDE = "dpmpp_2m_sde"
    UNI_PC = "unipc"
    DEIS = "deis"
    LCM = "lcm"
    TCD = "tcd"
    FLOW_DPM_SOLVER_PP_2M = "flow_dpmpp_2m"
    SCM = "scm"
    HEUN = "heun"


class SigmaSpacing(Enum):
    """Name the spacing of noise levels: that of the timesteps, or one of the levels themselves."""

    TIMESTEPS = "timesteps"
    KARRAS = "karras"
    EXPONENTIAL = "exponential"
    BETA = "beta"


# Samplers that read a request's eta: their share of fresh noise.
WITH_ETA = (Scheduler.DDIM, Scheduler.TCD)
# CLIP's text encoder of Stable Diffusion 1 has twelve layers.
MAX_CLIP_SKIP = 11
# Samplers without reuse: a state between the passes of a level is more than a latent.
WITHOUT_REUSE = (Scheduler.HEUN,)
# Samplers with a choice of spacings.
WITH_SPACINGS = (
    Scheduler.EULER,
    Scheduler.HEUN,
    Scheduler.DPM_SOLVER_PP_2M,
    Scheduler.DPM_SOLVER_PP_2M_SDE,
    Scheduler.UNI_PC,
    Scheduler.DEIS,
)


class Preprocessor(Enum):
    """Name the computation of a ControlNet's condition from its image."""

    EDGES = "edges"
    DEPTH = "depth"


class ControlKind(Enum):
    """Name what a ControlNet-Union takes its condition for, in the order of published networks' control types."""

    POSE = "pose"
    DEPTH = "depth"
    SCRIBBLE = "scribble"
    LINES = "lines"
    NORMALS = "normals"
    SEGMENTS = "segments"
    TILE = "tile"
    REPAINT = "repaint"


class ControlNetMode(Enum):
    SYNCHRONOUS = "synchronous"
    PIPELINED = "pipelined"


class NoiseForm(Enum):
    """How an image is re-noised (MoDM, section 5.1)."""

    VARIANCE_PRESERVING = "variance_preserving"
    FLOW_MATCHING = "flow_matching"


def noise_form_of(prediction_type: str) -> NoiseForm:
    """Return the noise form of models with a prediction type."""
    return NoiseForm.FLOW_MATCHING if prediction_type.startswith("flow") else NoiseForm.VARIANCE_PRESERVING


@dataclass(frozen=True)
class ObjectReference:
    """An object of the object store; `digest` is "sha256:<hex>" and is verified on every read. `blocks_digest` is that
    of the hashes of its blocks, stored next to it; empty if there are none."""

    key: str
    digest: str
    size_bytes: int
    blocks_digest: str = ""


@dataclass(frozen=True)
class LoraSelection:
    """A LoRA of a request. Resolved, `digest` says which weights, and `object` where they are in the object store; None
    where workers have them in a directory of their own. `signed_entry`: of an uploaded LoRA, for workers with keys."""

    name: str
    scale: float = 1.0
    digest: str = ""
    object: ObjectReference | None = None
    signed_entry: str = ""


@dataclass(frozen=True)
class ControlNetSelection:
    """A ControlNet of a request, and the encoded image that it goes by; it acts between two shares of the schedule.
    `digest` and `object` as in `LoraSelection`. `preprocessor` computes the condition from the image, None if the image
    is the condition; `preprocessor_digest` is that of its model, "" for one without. `kind` is None except for a
    ControlNet-Union."""

    name: str
    conditioning_image: bytes = field(repr=False)
    conditioning_scale: float = 1.0
    start_fraction: float = 0.0
    end_fraction: float = 1.0
    digest: str = ""
    object: ObjectReference | None = None
    preprocessor: Preprocessor | None = None
    preprocessor_digest: str = ""
    kind: ControlKind | None = None


@dataclass(frozen=True)
class ImagePromptSelection:
    """An image prompt of a request: an IP-Adapter, the encoded image that it reads, and the weight of what it reads.
    `digest` as in `LoraSelection`."""

    name: str
    image: bytes = field(repr=False)
    scale: float = 1.0
    digest: str = ""


@dataclass(frozen=True)
class InitImage:
    """Encoded image to start from and the strength of the change, 0..1 (img2img). `mask`: a PNG of the image's own size
    that is white or transparent where the image may change (inpainting); empty for where the image itself is
    transparent, and everywhere in an opaque one."""

    image: bytes = field(repr=False)
    strength: float
    mask: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class GenerationSpec:
    """Everything that changes the image, fully resolved. Prompts stay out of `repr` and so out of logs.
    `sigma_spacing`: None for that of the model's configuration. `prompt_syntax` is that of both prompts."""

    prompt: str = field(repr=False)
    negative_prompt: str = field(repr=False)
    model: str
    width_px: int
    height_px: int
    num_inference_steps: int
    guidance_scale: float
    scheduler: Scheduler
    seed: int
    eta: float = 0.0
    loras: tuple[LoraSelection, ...] = ()
    controlnets: tuple[ControlNetSelection, ...] = ()
    init_image: InitImage | None = None
    sigma_spacing: SigmaSpacing | None = None
    clip_skip: int = 0
    prompt_syntax: PromptSyntax | None = None
    image_prompts: tuple[ImagePromptSelection, ...] = ()

    @property
    def plain_prompt(self) -> str:
        """Return the prompt for readers of its meaning: the embedder, and with it cache and discriminator."""
        return plain_prompt(self.prompt, self.prompt_syntax)


def promptless(
    model: str, size_px: tuple[int, int], step_count: int, guidance_scale: float, scheduler: Scheduler | str
) -> GenerationSpec:
    """Return a request without prompts, of (width, height), for measurements."""
    return GenerationSpec("", "", model, *size_px, step_count, guidance_scale, Scheduler(scheduler), seed=0)


@dataclass(frozen=True)
class SpecInput:
    """Bytes of a spec that are kept apart from it, by their place in it: "init_image.image"."""

    field: str
    object: ObjectReference


@dataclass(frozen=True)
class Donor:
    """The cache entry that a start came from. `request_id`: the request that made its image; "" for another tenant's
    request, or an unknown one."""

    entry_id: str
    digest: str
    similarity: float
    ancestor_depth: int = 0
    request_id: str = ""


@dataclass(frozen=True)
class FromNoise:
    @property
    def saved_steps(self) -> int:
        """Return 0: all steps run."""
        return 0


@dataclass(frozen=True)
class FromLatent:
    """Resume x_K, K = `resume_step` of `donor_steps` denoising steps, which are saved (NIRVANA).

    With `renoised_steps` the latent is first noised again, by the request's seed, to the level before step K minus
    these steps; `retaken_steps` steps lead back to step K and are not saved (0: all).
    """

    latent: ObjectReference
    resume_step: int
    donor_steps: int
    sigma: float
    donor: Donor
    renoised_steps: int = 0
    retaken_steps: int = 0

    @property
    def bridge(self) -> tuple[int, ...]:
        """Return the steps from the re-noised step to K; empty where the latent is resumed without new noise."""
        return bridge_steps(self.resume_step, self.renoised_steps, self.retaken_steps or self.renoised_steps)

    @property
    def saved_steps(self) -> int:
        """Return how many steps are left out."""
        return self.resume_step - (self.retaken_steps or self.renoised_steps)


@dataclass(frozen=True)
class FromImage:
    """Re-noise a final image to `start_step` (MoDM), or with `renoised_steps` to an earlier step; `retaken_steps`
    steps lead back, as for `FromLatent`. `reference_model_digest`: the large model of the profile that allowed it;
    empty for none."""

    image: ObjectReference
    start_step: int
    noise_form: NoiseForm
    donor: Donor
    renoised_steps: int = 0
    retaken_steps: int = 0
    reference_model_digest: str = ""

    @property
    def bridge(self) -> tuple[int, ...]:
        """Return the steps from where it is noised to `start_step`; empty where it is noised to that step."""
        return bridge_steps(self.start_step, self.renoised_steps, self.retaken_steps or self.renoised_steps)

    @property
    def saved_steps(self) -> int:
        """Return how many steps are left out."""
        return self.start_step - (self.retaken_steps or self.renoised_steps)


Start = FromNoise | FromLatent | FromImage


@dataclass(frozen=True, order=True)
class PlanVersion:
    leader_epoch: int = 0
    sequence: int = 0


@dataclass(frozen=True)
class CascadeStage:
    """A stage as a route was decided with it. `confidence_threshold` is for images from the route's start."""

    model: str
    discriminator: str = ""
    confidence_threshold: float = 0.0
    pool: str = ""


@dataclass(frozen=True)
class Route:
    """Decided once per request, journalled, the same for every attempt."""

    route_id: str
    start: Start
    model: str
    model_digest: str
    stages: tuple[CascadeStage, ...] = ()
    lora_patch_step: int = 0
    controlnet_mode: ControlNetMode | None = None
    plan_version: PlanVersion = PlanVersion()
    reason: str = ""
    # The request to replay: alone, from that start and no other; "" for every other request.
    replay_of: str = ""
    # PIPELINED: from this step of the schedule on residuals are those of the step before. 0 otherwise.
    pipelined_from_step: int = 0
    # The plan's cascade that the stages are of; "" for the operator's own, and where there is none.
    cascade: str = ""
    # Set for an attempt: from the first listed step on, only listed steps of the schedule are taken; empty for all.
    thinned_steps: tuple[int, ...] = ()
    # From the first one on only these steps run the whole network, the others reuse deep features; empty for all.
    full_steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Attempt:
    """One try at a request. A result is committed only under the newest token. Raises InvalidArgument without a request
    id."""

    request_id: str
    attempt_number: int
    fencing_token: int
    frontdoor_id: str
    frontdoor_epoch: int
    tenant: str

    def __post_init__(self) -> None:
        if not self.request_id:
            raise InvalidArgument.of("request_id", "must not be empty")


@dataclass(frozen=True)
class LatentSlot:
    resume_step: int
    key: str


@dataclass(frozen=True)
class CacheGrant:
    """Where an attempt may store what it captures; `signature` by `domain.cache`, empty without a key."""

    grant_id: str
    latents: tuple[LatentSlot, ...]
    image_key: str
    expires_in_ms: int
    expires_at_ms: int = 0
    signature: bytes = b""


@dataclass(frozen=True)
class CapturedLatent:
    resume_step: int
    sigma: float
    object: ObjectReference
    adapter_free: bool


@dataclass(frozen=True)
class CapturedEntries:
    grant_id: str
    latents: tuple[CapturedLatent, ...] = ()
    image: ObjectReference | None = None


@dataclass(frozen=True)
class StageTiming:
    stage: str
    start_ms: float
    duration_ms: float


@dataclass(frozen=True)
class Provenance:
    """How an image was made; enough to replay it."""

    request_id: str
    spec: GenerationSpec
    route: Route
    model_digest: str
    worker_id: str
    worker_generation: int
    attempt_number: int
    steps_run: int
    steps_saved: int
    build_version: str
    timings: tuple[StageTiming, ...] = ()
    discriminator_confidence: float | None = None
    device_seconds: float = 0.0
    energy_joules: float | None = None
    notes: tuple[str, ...] = ()
    # Inputs that the request was sent with and the spec does not repeat; without keys.
    inputs: tuple[SpecInput, ...] = ()
    # For a replay: whether its bytes equal the first image's; None otherwise, or where unknown.
    replay_equal: bool | None = None
    # Quality of a JPEG or WebP file, 0 to 100; None: the encoder's own.
    encoding_quality: int | None = None
    # Digest of the image before a C2PA manifest was added; "" without one.
    unsigned_digest: str = ""
    prompt_verdict: SafetyVerdict | None = None
    image_verdict: SafetyVerdict | None = None
