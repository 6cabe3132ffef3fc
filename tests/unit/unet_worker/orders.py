"""Orders as a frontdoor would send them to a worker that holds HELD."""

from dataclasses import replace
from typing import Any

from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import (
    Attempt,
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    NoiseForm,
    ObjectReference,
    Route,
    Scheduler,
    Start,
)
from services.unet_worker.attempts.order import ExecuteOrder

HELD = HeldModel(
    model="tiny",
    model_digest="sha256:model",
    worker_generation=5,
    vae_digest="sha256:vae",
    scheduler_digest="sha256:scheduler",
    prediction_type="v_prediction",
    family="stable_diffusion",
    default_width_px=32,
    default_height_px=32,
    size_multiple_px=8,
    max_size_px=64,
    default_steps=8,
    max_steps=100,
    default_guidance_scale=3.0,
    schedulers=("ddim", "euler"),
)
SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 8, 3.0, Scheduler.DDIM, seed=7)
ATTEMPT = Attempt("request", 1, 10, "frontdoor", 3, "tenant")
ROUTE = Route("route", FromNoise(), "tiny", "sha256:model")
ORDER = ExecuteOrder(ATTEMPT, SPEC, ROUTE, worker_generation=5)
OBJECT = ObjectReference("donors/one", "sha256:" + "0" * 64, 100)
DONOR = Donor("entry", "sha256:donor", 0.9)
FROM_LATENT = FromLatent(OBJECT, 3, 8, 1.0, DONOR)
FROM_IMAGE = FromImage(OBJECT, 3, NoiseForm.VARIANCE_PRESERVING, DONOR)


def order_with(*, start: Start | None = None, attempt: dict[str, Any] | None = None, **spec: Any) -> ExecuteOrder:
    return replace(
        ORDER,
        spec=replace(SPEC, **spec),
        route=replace(ROUTE, start=start or FromNoise()),
        attempt=replace(ATTEMPT, **(attempt or {})),
    )
