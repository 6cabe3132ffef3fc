"""Compute the saved steps, the remaining work and the cache scope of a start."""

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from pentimento.domain.cache import CacheScope
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import (
    ControlNetSelection,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    Route,
    Start,
)
from pentimento.domain.image_request import CacheMode, ResolvedRequest
from pentimento.domain.prompt_syntax import PromptSyntax, parse_prompt
from pentimento.policies.plan.entry import IMAGE, LATENT, NOISE


def scope_of(
    tenant: str, resolved: ResolvedRequest, held: HeldModel, lora_patch_step: int, pipelined_from_step: int
) -> CacheScope:
    """Return all properties except prompt and seed that change the image. Sampler, eta and the weights of the prompt's
    words count as part of the scheduler: prompts are compared without weights, so a latent serves only requests with
    the same weights on the same words. The request's LoRAs take effect after `lora_patch_step` steps; residuals are one
    step old from `pipelined_from_step` on, 0 for never."""
    spec = resolved.spec
    sampler = f"{held.scheduler_digest} {spec.scheduler.value} {spec.eta!r}"
    if spec.sigma_spacing is not None:
        sampler = f"{sampler} {spec.sigma_spacing.value}"
    if spec.clip_skip:
        sampler = f"{sampler} without {spec.clip_skip} layers"
    if spec.prompt_syntax is not None:
        sampler = f"{sampler} {spec.prompt_syntax.value} {_weights_of(spec.prompt, spec.prompt_syntax)!r}"
    images = [(prompt.digest, _image_digest(resolved, place)) for place, prompt in enumerate(spec.image_prompts)]
    settings: list[tuple[object, ...]] = [
        (net.conditioning_scale, net.start_fraction, net.end_fraction) for net in spec.controlnets
    ]
    settings += [("image prompt", prompt.scale) for prompt in spec.image_prompts]
    return CacheScope(
        tenant=tenant,
        model_digest=held.model_digest,
        vae_digest=held.vae_digest,
        scheduler_digest=_sampler_digest(sampler),
        prediction_type=held.prediction_type,
        width_px=spec.width_px,
        height_px=spec.height_px,
        guidance_scale=spec.guidance_scale,
        negative_prompt=spec.negative_prompt,
        num_inference_steps=spec.num_inference_steps,
        adapters_digest=_digest_of((lora.digest, lora.scale) for lora in spec.loras),
        adapters_from_step=lora_patch_step,
        conditioning_digest=_digest_of((*zip(_controlnets(resolved), _conditions(resolved), strict=True), *images)),
        # Synchronous requests keep the key from before pipelining existed.
        control_digest=_digest_of([*settings, pipelined_from_step] if pipelined_from_step else settings),
        shared_pool=resolved.cache is CacheMode.SHARED,
    )


def repeat_key_of(spec: GenerationSpec) -> str:
    """Return the digest of prompt and seed, which identify a request within its scope."""
    return _sha256(f"{spec.seed} {spec.prompt}".encode())


def _weights_of(prompt: str, syntax: PromptSyntax) -> list[tuple[str, float]]:
    return [(fragment.text, fragment.weight) for fragment in parse_prompt(prompt, syntax).weighted]


@lru_cache(maxsize=256)
def _sampler_digest(sampler: str) -> str:
    return _sha256(sampler.encode())


def _controlnets(resolved: ResolvedRequest) -> list[str]:
    return [controlnet.digest for controlnet in resolved.spec.controlnets]


def _conditions(resolved: ResolvedRequest) -> list[str]:
    """Return the digests of the conditioning images, with kind and preprocessor."""
    return [
        (_apart(resolved, f"controlnets[{index}].conditioning_image") or _sha256(controlnet.conditioning_image))
        + _taken_as(controlnet)
        for index, controlnet in enumerate(resolved.spec.controlnets)
    ]


def _image_digest(resolved: ResolvedRequest, place: int) -> str:
    """Return the digest of an image prompt's image."""
    own = resolved.spec.image_prompts[place].image
    return _apart(resolved, f"image_prompts[{place}].image") or _sha256(own)


def _apart(resolved: ResolvedRequest, field: str) -> str:
    """Return the digest of bytes that are stored apart from the spec; empty for bytes that are in it."""
    return next((part.object.digest for part in resolved.inputs if part.field == field), "")


def _taken_as(controlnet: ControlNetSelection) -> str:
    """Return the kind of condition, and the preprocessor with its model's digest; empty for neither, which keeps the
    key from before there were any."""
    kind = f" as {controlnet.kind.value}" if controlnet.kind is not None else ""
    if controlnet.preprocessor is None:
        return kind
    return f"{kind} {controlnet.preprocessor.value} {controlnet.preprocessor_digest}"


def _digest_of(parts: Iterable[object]) -> str:
    """Return the digest of the parts in their order; empty for none."""
    found = tuple(parts)
    return _sha256(repr(found).encode()) if found else ""


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def kind_of(start: Start) -> str:
    """Return the kind of start as plans name it."""
    match start:
        case FromLatent():
            return LATENT
        case FromImage():
            return IMAGE
        case FromNoise():
            return NOISE


def steps_saved(start: Start) -> int:
    """Return the denoising steps that the start skips."""
    match start:
        case FromLatent() | FromImage():
            return start.saved_steps
        case FromNoise():
            return 0


def reused_share(route: Route, step_count: int, held: HeldModel) -> float:
    """Return the work of a route's steps ÷ that of whole ones: a step that reuses deep features counts at its measured
    cost. 1 if none does, or if the cost is not known."""
    first, count = steps_saved(route.start), max(step_count - steps_saved(route.start), 1)
    if not route.full_steps or not held.reused_step_share:
        return 1.0
    # The first step has no features to reuse.
    reusing = len(set(range(max(route.full_steps[0], first + 1), step_count)) - set(route.full_steps))
    return 1.0 - reusing * (1.0 - held.reused_step_share) / count


def work_left(resolved: ResolvedRequest, start: Start) -> float:
    """Return the pixel steps from that start to the image, at least one step."""
    spec = resolved.spec
    steps = spec.num_inference_steps - steps_saved(start)
    if spec.init_image is not None:
        steps = int(steps * spec.init_image.strength)
    return float(spec.width_px * spec.height_px * max(steps, 1))


def ancestor_depth(start: Start) -> int:
    """Return the number of cached ancestors between an image from that start and noise; 0 for noise."""
    return 0 if isinstance(start, FromNoise) else start.donor.ancestor_depth + 1
