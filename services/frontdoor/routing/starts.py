"""Compute saved steps, remaining work and cache scope of a start, and the stages that a route records."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from pentimento.domain.cache import CacheScope
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import (
    CascadeStage,
    ControlNetSelection,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    Route,
    Scheduler,
    Start,
    noise_form_of,
)
from pentimento.domain.image_request import AdmittedStages, CacheMode, ResolvedRequest
from pentimento.domain.prompt_syntax import PromptSyntax, parse_prompt
from pentimento.policies.plan.entry import IMAGE, LATENT, NOISE, Stage, scaled_start_step
from pentimento.stores.objects.store import digest_of


def scope_of(tenant: str, resolved: ResolvedRequest, held: HeldModel, route: Route) -> CacheScope:
    """Return all properties except prompt and seed that change the image. Sampler, eta and the weights of the prompt's
    words count as part of the scheduler: prompts are compared without weights, so a latent serves only requests with
    the same weights on the same words. The route tells when LoRAs take effect and residuals are one step old."""
    spec, pipelined_from_step = resolved.spec, route.pipelined_from_step
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
        adapters_from_step=route.lora_patch_step,
        conditioning_digest=_digest_of(
            (*zip((one.digest for one in spec.controlnets), _conditions(resolved), strict=True), *images)
        ),
        # Synchronous requests keep the key from before pipelining existed.
        control_digest=_digest_of([*settings, pipelined_from_step] if pipelined_from_step else settings),
        shared_pool=resolved.cache is CacheMode.SHARED,
    )


def repeat_key_of(spec: GenerationSpec) -> str:
    """Return the digest of prompt and seed, which identify a request within its scope."""
    return digest_of(f"{spec.seed} {spec.prompt}".encode())


def _weights_of(prompt: str, syntax: PromptSyntax) -> list[tuple[str, float]]:
    return [(fragment.text, fragment.weight) for fragment in parse_prompt(prompt, syntax).weighted]


@lru_cache(maxsize=256)
def _sampler_digest(sampler: str) -> str:
    return digest_of(sampler.encode())


def _conditions(resolved: ResolvedRequest) -> list[str]:
    """Return the digests of the conditioning images, with kind and preprocessor."""
    return [
        (_apart(resolved, f"controlnets[{index}].conditioning_image") or digest_of(controlnet.conditioning_image))
        + _taken_as(controlnet)
        for index, controlnet in enumerate(resolved.spec.controlnets)
    ]


def _image_digest(resolved: ResolvedRequest, place: int) -> str:
    own = resolved.spec.image_prompts[place].image
    return _apart(resolved, f"image_prompts[{place}].image") or digest_of(own)


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
    return digest_of(repr(found).encode()) if found else ""


def kind_of(start: Start) -> str:
    match start:
        case FromLatent():
            return LATENT
        case FromImage():
            return IMAGE
        case FromNoise():
            return NOISE


def reused_share(route: Route, step_count: int, held: HeldModel) -> float:
    """Return the work of a route's steps ÷ that of whole ones: a step that reuses deep features counts at its measured
    cost. 1 if none does, or if the cost is not known."""
    first, count = route.start.saved_steps, max(step_count - route.start.saved_steps, 1)
    if not route.full_steps or not held.reused_step_share:
        return 1.0
    # The first step has no features to reuse.
    reusing = len(set(range(max(route.full_steps[0], first + 1), step_count)) - set(route.full_steps))
    return 1.0 - reusing * (1.0 - held.reused_step_share) / count


def work_left(resolved: ResolvedRequest, start: Start) -> float:
    """Return the pixel steps from that start to the image, at least one step."""
    spec = resolved.spec
    steps = spec.num_inference_steps - start.saved_steps
    if spec.init_image is not None:
        steps = int(steps * spec.init_image.strength)
    return float(spec.width_px * spec.height_px * max(steps, 1))


def ancestor_depth(start: Start) -> int:
    """Return the number of cached ancestors between an image from that start and noise; 0 for noise."""
    return 0 if isinstance(start, FromNoise) else start.donor.ancestor_depth + 1


@dataclass(frozen=True)
class Trial:
    """Hold a start that a cell under test would allow to a request that misses, the model that would take it, and that
    model's number of steps."""

    start: FromLatent | FromImage
    model_digest: str
    step_count: int

    @property
    def reference_digest(self) -> str:
        """Return the model that generates the image from noise that the trial is compared with."""
        pair = self.start.reference_model_digest if isinstance(self.start, FromImage) else ""
        return pair or self.model_digest


@dataclass(frozen=True)
class PoolOption:
    """Describe a pool that may run a request: the pool, the request in its model's terms, and its route there. `trial`:
    for a miss, one of a candidate for its start; None without one."""

    pool: str
    held: HeldModel
    resolved: ResolvedRequest
    route: Route
    trial: Trial | None = None


def as_started_by(option: PoolOption, pool: str, resolved: ResolvedRequest, held: HeldModel) -> PoolOption | None:
    """Return the same start in another pool. Another model starts from the image at the same share of its steps; None
    if that saves no step."""
    if held.model == option.held.model:
        return replace(option, pool=pool)
    start = option.route.start
    assert isinstance(start, FromImage)
    steps, own_steps = option.resolved.spec.num_inference_steps, resolved.spec.num_inference_steps
    image = _scaled(start, steps, own_steps)
    if not image.saved_steps:
        return None
    image = replace(image, noise_form=noise_form_of(held.prediction_type))
    route = replace(option.route, start=image, model=held.model, model_digest=held.model_digest)
    return PoolOption(pool, held, resolved, route)


def _scaled(start: FromImage, steps: int, own_steps: int) -> FromImage:
    """Scale the start to a model with `own_steps`; at least one step is retaken, if any is renoised."""
    step = scaled_start_step(start.start_step, steps, own_steps)
    again = min(scaled_start_step(start.renoised_steps, steps, own_steps), max(step - 1, 0))
    back = min(max(scaled_start_step(start.retaken_steps or start.renoised_steps, steps, own_steps), 1), again)
    return replace(start, start_step=step, renoised_steps=again, retaken_steps=back)


def cascade_stages(stages: Sequence[Stage], start: str, own_threshold: float) -> tuple[CascadeStage, ...]:
    """Return the stages as a route from that kind of start records them; none for a single stage. `own_threshold`: the
    operator's, for stages outside the plan's cascades. If a stage's images from that start are not scored, it
    has no discriminator, and the next stage replaces it."""
    if len(stages) < 2:
        return ()
    *scored, last = stages
    return (
        *(
            CascadeStage(
                stage.model,
                discriminator_of(stages, index),
                (stage.threshold(start) or 0.0) if stage.cascade else own_threshold,
                stage.pool,
            )
            if _is_scored(stage, start)
            else CascadeStage(stage.model, pool=stage.pool)
            for index, stage in enumerate(scored)
        ),
        CascadeStage(last.model, pool=last.pool),
    )


def admitted_stages(stages: Sequence[Stage], model: str) -> AdmittedStages | None:
    """Return the stages that a request of that model was admitted to, as the journal stores them; None if they are only
    the model's own pool."""
    if tuple(stages) == (Stage(model, model),):
        return None
    told = tuple(CascadeStage(stage.model, stage.discriminator, pool=stage.pool) for stage in stages)
    return AdmittedStages(told, stages[0].cascade, stages[0].planned)


def stages_admitted_to(admitted: AdmittedStages) -> tuple[Stage, ...]:
    """Return the stages that the journal stores; their other properties come from the plan in force."""
    return tuple(
        Stage(stage.pool, stage.model, admitted.cascade, stage.discriminator, planned=admitted.planned)
        for stage in admitted.stages
    )


def may_be_scored(stages: Sequence[Stage]) -> bool:
    """Return whether a discriminator may score images of the stages, for any kind of start."""
    return any(not stage.cascade or stage.thresholds for stage in stages[:-1])


def _is_scored(stage: Stage, start: str) -> bool:
    return not stage.deserted and (not stage.cascade or stage.threshold(start) is not None)


def discriminator_of(stages: Sequence[Stage], index: int) -> str:
    """Return the discriminator of a stage's images: the plan's, else that of its model and the next."""
    return stages[index].discriminator or cascade_name([stage.model for stage in stages[index : index + 2]])


def cascade_name(models: Sequence[str]) -> str:
    """Return the name of a cascade of models, light first, as in the discriminator's settings."""
    return ">".join(models)


def as_painted_by(resolved: ResolvedRequest, held: HeldModel) -> ResolvedRequest:
    """Return the request for another model, with that model's default steps, guidance scale and sampler."""
    if held.model == resolved.spec.model:
        return resolved
    spec = replace(
        resolved.spec,
        model=held.model,
        num_inference_steps=held.default_steps,
        guidance_scale=held.default_guidance_scale,
        scheduler=Scheduler(held.schedulers[0]),
        eta=0.0,
        sigma_spacing=None,
        clip_skip=0,
    )
    return replace(resolved, spec=spec)
