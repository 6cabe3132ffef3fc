"""A model as a worker would report it."""

from pentimento.domain.fleet import HeldModel

HELD = HeldModel(
    model="tiny",
    model_digest="sha256:model",
    worker_generation=1,
    vae_digest="sha256:vae",
    scheduler_digest="sha256:scheduler",
    prediction_type="epsilon",
    family="stable_diffusion",
    default_width_px=32,
    default_height_px=32,
    size_multiple_px=8,
    max_size_px=64,
    default_steps=50,
    max_steps=1000,
    default_guidance_scale=3.0,
    schedulers=("ddim", "euler"),
    licence="Apache-2.0",
)
