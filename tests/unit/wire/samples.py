"""Values with every field set, for tests of messages and their bytes."""

from pentimento.domain.adapters import Adapter, AdapterKind, RejectedAdapter
from pentimento.domain.cache import CacheScope
from pentimento.domain.execution import AttemptResult, RunningAttempt, Started, StepProgress, WorkerCredits
from pentimento.domain.fleet import Capability, HeldModel
from pentimento.domain.generation import (
    Attempt,
    CacheGrant,
    CapturedEntries,
    CapturedLatent,
    CascadeStage,
    ControlKind,
    ControlNetMode,
    ControlNetSelection,
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    InitImage,
    LatentSlot,
    LoraSelection,
    NoiseForm,
    ObjectReference,
    PlanVersion,
    Preprocessor,
    Provenance,
    Route,
    Scheduler,
    SpecInput,
    StageTiming,
)
from pentimento.domain.image_request import (
    Accepted,
    AdmittedStages,
    AskedControlNet,
    AskedLora,
    CacheMode,
    Completed,
    ImageFormat,
    ImageRequest,
    Progress,
    Replay,
    RequestStatus,
    ResolvedRequest,
    Routed,
    StartImage,
)
from pentimento.domain.jobs import RequestPage, RequestQuery, RequestSummary, WebhookDelivery, WebhookState
from pentimento.domain.requests import RequestState

DIGEST = "sha256:" + "ab" * 32
OBJECT = ObjectReference("cache/0/f00d", DIGEST, 16_384)
DONOR = Donor("entry-1", DIGEST, 0.71, 1, "request-0")
SPEC = GenerationSpec(
    "a red circle",
    "blue",
    "tiny",
    512,
    256,
    50,
    7.5,
    Scheduler.DPM_SOLVER_PP_2M,
    2**63 + 7,
    0.25,
    (LoraSelection("neon", 0.8, DIGEST, OBJECT), LoraSelection("mosaic")),
    (
        ControlNetSelection(
            "edges", b"png", 0.5, 0.1, 0.9, DIGEST, OBJECT, Preprocessor.DEPTH, DIGEST, ControlKind.TILE
        ),
    ),
    InitImage(b"image", 0.6, b"mask"),
)
STAGES = (CascadeStage("light", "light>tiny", 0.4, "light"), CascadeStage("tiny", pool="heavy"))
ROUTE = Route(
    "route-1",
    FromImage(OBJECT, 12, NoiseForm.FLOW_MATCHING, DONOR, 3, 2),
    "tiny",
    DIGEST,
    STAGES,
    7,
    ControlNetMode.PIPELINED,
    PlanVersion(3, 17),
    "hit: similarity 0.71",
    "request-9",
    5,
    "light>tiny",
    (20, 22, 24),
)
LATENT_ROUTE = Route("route-2", FromLatent(OBJECT, 10, 50, 3.5, DONOR, 2, 1), "tiny", DIGEST)
NOISE_ROUTE = Route("route-3", FromNoise(), "tiny", DIGEST)
PROVENANCE = Provenance(
    "request-1",
    SPEC,
    ROUTE,
    DIGEST,
    "worker-0",
    3,
    2,
    38,
    12,
    "1.2.3",
    (StageTiming("denoise", 1.5, 2.5),),
    0.61,
    3.25,
    120.5,
    ("cache skipped",),
    (SpecInput("init_image.image", OBJECT),),
    False,
    90,
)
RESOLVED = ResolvedRequest(
    SPEC,
    CacheMode.READ_WRITE,
    ImageFormat.WEBP,
    0.0,
    5_000,
    4,
    (SpecInput("init_image.image", OBJECT),),
    Replay(LATENT_ROUTE, DIGEST),
    60_000,
    True,
    2,
    0,
    AdmittedStages(STAGES, "light>tiny", True),
)
ATTEMPT = Attempt("request-1", 2, 9, "frontdoor-0", 4, "acme")
ADAPTER = Adapter("edges", AdapterKind.CONTROLNET, DIGEST, "sd", DIGEST, "mit", OBJECT, 0.2, DIGEST, 8)
HELD = HeldModel(
    "tiny", DIGEST, 3, DIGEST, DIGEST, "epsilon", "sd", 64, 32, 8, 128, 50, 100, 7.5, ("ddim",), "mit", 0.1
)
PROGRESS = Progress(3, 50, b"png", 2, 1, 512, 256, 12)
COMPLETED = Completed("request-1", b"png", ImageFormat.PNG, 512, 256, PROVENANCE, 1)
SUMMARY = RequestSummary("r", RequestState.FAILED, True, "key", 1, 2, 3, 4, 5, 6, "REASON", "why", "g")

SAMPLES = {
    "spec": SPEC,
    "route from an image": ROUTE,
    "route from a latent": LATENT_ROUTE,
    "route from noise": NOISE_ROUTE,
    "provenance": PROVENANCE,
    "journalled request": RESOLVED,
    "journalled request without options": ResolvedRequest(SPEC, CacheMode.OFF, ImageFormat.PNG, None, 5_000),
    "start image": StartImage(OBJECT, 0.5),
    "attempt": ATTEMPT,
    "grant": CacheGrant("grant-1", (LatentSlot(10, "key"),), "image", 1_000, 2_000, b"signature"),
    "captured": CapturedEntries("grant-1", (CapturedLatent(10, 3.5, OBJECT, True),), OBJECT),
    "scope": CacheScope("acme", DIGEST, DIGEST, DIGEST, "v", 512, 256, 7.5, "blue", 50, "a", 3, "b", "c", True),
    "request": ImageRequest(
        "a red circle",
        "blue",
        "tiny",
        512,
        256,
        50,
        0.0,
        "ddim",
        0.5,
        0,
        (AskedLora("neon", 0.0), AskedLora("mosaic")),
        (AskedControlNet("edges", b"png", 0.5, 0.1, 0.9, "depth", "tile"),),
        InitImage(b"image", 0.6, b"mask"),
        CacheMode.SHARED,
        ImageFormat.JPEG,
        0.9,
        5_000,
        1e9,
        60_000,
        False,
        4,
        90,
    ),
    "request of defaults": ImageRequest("a red circle"),
    "accepted": Accepted("request-1", True, ("request-1-0", "request-1-1")),
    "routed": Routed(ROUTE, 1),
    "progress": PROGRESS,
    "completed": COMPLETED,
    "status": RequestStatus(
        "request-1",
        RequestState.COMPLETED,
        COMPLETED,
        "REASON",
        "why",
        (RequestStatus("request-1-0", RequestState.RUNNING, progress=PROGRESS),),
        SUMMARY,
        WebhookDelivery(WebhookState.FAILED, 3, "refused"),
        PROGRESS,
    ),
    "page": RequestPage((SUMMARY,), "next"),
    "query": RequestQuery(frozenset({RequestState.FAILED, RequestState.ACCEPTED}), True, 50, "page"),
    "credits": WorkerCredits(
        "worker-0",
        HELD,
        4,
        3,
        2,
        True,
        frozenset({Capability.LORA, Capability.EMULATED}),
        ("tiny", "neon"),
        (RunningAttempt("request-1", 9, 3, 50, True),),
        1,
        (ADAPTER,),
        2,
        (RejectedAdapter("bad", AdapterKind.LORA, "BAD_LORA", "why"),),
    ),
    "started": Started("worker-0", 12, 50),
    "step": StepProgress(13, 50, b"png"),
    "result": AttemptResult(
        ATTEMPT,
        b"png",
        512,
        256,
        DIGEST,
        CapturedEntries("grant-1"),
        38,
        12,
        DIGEST,
        3,
        (StageTiming("denoise", 1.5, 2.5),),
        3.25,
        120.5,
        ("note",),
        "CORRUPT",
        0,
        0.0,
        (20, 22),
    ),
}
