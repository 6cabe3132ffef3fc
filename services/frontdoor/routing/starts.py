"""What a start means: what it saves, what is left, and in which scope of the cache it lies."""

import hashlib

from pentimento.domain.cache import CacheScope
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import FromImage, FromLatent, FromNoise, Start
from pentimento.domain.image_request import CacheMode, ResolvedRequest
from pentimento.policies.serving.entry import IMAGE, LATENT, NOISE


def scope_of(tenant: str, resolved: ResolvedRequest, held: HeldModel) -> CacheScope:
    """Everything but prompt and seed that changes the picture; sampler and eta count as part of the scheduler."""
    spec = resolved.spec
    sampler = f"{held.scheduler_digest} {spec.scheduler.value} {spec.eta!r}"
    return CacheScope(
        tenant=tenant,
        model_digest=held.model_digest,
        vae_digest=held.vae_digest,
        scheduler_digest="sha256:" + hashlib.sha256(sampler.encode()).hexdigest(),
        prediction_type=held.prediction_type,
        width_px=spec.width_px,
        height_px=spec.height_px,
        guidance_scale=spec.guidance_scale,
        negative_prompt=spec.negative_prompt,
        num_inference_steps=spec.num_inference_steps,
        shared_pool=resolved.cache is CacheMode.SHARED,
    )


def kind_of(start: Start) -> str:
    """The kind of start as plans name it."""
    match start:
        case FromLatent():
            return LATENT
        case FromImage():
            return IMAGE
        case FromNoise():
            return NOISE


def steps_saved(start: Start) -> int:
    """Denoising steps that the start leaves out."""
    match start:
        case FromLatent():
            return start.resume_step
        case FromImage():
            return start.start_step
        case FromNoise():
            return 0


def work_left(resolved: ResolvedRequest, start: Start) -> float:
    """Pixel steps from that start to the picture."""
    spec = resolved.spec
    return float(spec.width_px * spec.height_px * max(spec.num_inference_steps - steps_saved(start), 1))


def ancestor_depth(start: Start) -> int:
    """Generations between a picture from that start and one painted from noise."""
    return 0 if isinstance(start, FromNoise) else start.donor.ancestor_depth + 1
