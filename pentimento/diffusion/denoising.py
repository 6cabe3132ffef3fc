"""Denoise one request with free functions: prepare, then one denoising step after the other.

denoising = prepare(model, prompts, request)
while not denoising.done:
    denoise_step(model, denoising)
latent = denoising.state.latent          # for `model.decode_latent`

A step has two halves around the network, `fill_model_input` and `take_step`, so that a batch can share the network.
"""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pentimento.diffusion.denoising_sources import ControlSource, GuidancePeer, HalfStart, LoraSource
from pentimento.diffusion.families.image_prompts import ImagePrompt, stack_image_prompts
from pentimento.diffusion.families.model import Conditioning, DenoiserInput, DiffusionModel
from pentimento.diffusion.families.row_updates import PerSampleAdapters
from pentimento.diffusion.inpainting import KnownRegion, cells_of, kept_pixels, masked_channels
from pentimento.diffusion.loras.lora import AdapterSet
from pentimento.diffusion.loras.patching import stack_adapters
from pentimento.diffusion.prompts import PromptMemo, read_prompts
from pentimento.diffusion.schedulers import (
    DiffusionConfig,
    FlowConfig,
    SamplerState,
    Schedule,
    make_schedule,
    renoised_latent,
)
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import GenerationSpec


@dataclass(frozen=True)
class NoiseStart:
    """Start from the seed's noise and take all steps."""

    first_step: int = 0


@dataclass(frozen=True)
class LatentStart:
    """Start from a stored latent (1, channels, height, width) at unit variance, resumed before `first_step` (NIRVANA).
    With a `bridge` (`StepSequence`) the latent is from the step `bridge[-1]`, and is re-noised to the level of
    `bridge[0]` with the request's seed."""

    latent: Tensor
    first_step: int
    bridge: tuple[int, ...] = ()


@dataclass(frozen=True)
class ImageStart:
    """Start from pixels (1, 3, height, width) in -1..1, noised to the level before `first_step` (MoDM, and img2img).
    With a `mask` (1, 1, height, width) of 0 and 1 only the pixels with 1 are generated, the others are kept; with
    `from_noise` the generated region starts from pure noise. `bridge` is as in `LatentStart`."""

    pixels: Tensor
    first_step: int
    mask: Tensor | None = None
    from_noise: bool = False
    bridge: tuple[int, ...] = ()


DenoisingStart = NoiseStart | LatentStart | ImageStart | HalfStart

# Above it the last bit of a latent that includes its noise, as Euler's do, is worth more than 1e-5. Schedules that
# start from almost pure noise begin at 4,000 and more, the others at 15 to 160.
_LOUD_SIGMA = 100.0


@dataclass(frozen=True)
class DenoisingRequest:
    """Describe a request to the engine. `deadline` is on the engine's monotonic clock in seconds. The listener receives
    latents before each of `capture_steps`, and the predicted clean latent after every `preview_interval_steps` steps
    (0: never). `alone` keeps other requests out of its forward passes. From `thinned_steps[0]` on only these steps are
    taken; empty for all. Captures, peers, ControlNets and LoRAs still use the original step numbers. From
    `full_steps[0]` on only these steps run the whole network, the others reuse the deep features of the last one that
    did; empty for all. Not together with thinned steps, a peer or ControlNets. `image_prompts` have a row for each half
    of the guidance; not together with a peer."""

    spec: GenerationSpec
    start: DenoisingStart
    capture_steps: frozenset[int] = frozenset()
    preview_interval_steps: int = 0
    deadline: float | None = None
    control: ControlSource | None = None
    loras: LoraSource | None = None
    alone: bool = False
    peer: GuidancePeer | None = None
    thinned_steps: tuple[int, ...] = ()
    full_steps: tuple[int, ...] = ()
    image_prompts: tuple[ImagePrompt, ...] = ()


@dataclass
class Denoising:
    """Hold the state of one request between steps. Only the engine's thread uses it."""

    request: DenoisingRequest
    schedule: Schedule
    state: SamplerState
    conditioning: Conditioning
    generator: torch.Generator
    predicted_clean: Tensor | None = None
    prompt_truncated: bool = False
    # A peer computes the unconditional row of the next step.
    conditional_only: bool = False
    # The known region of a masked image.
    known: KnownRegion | None = None
    # Deep features of the rows at the last step that ran the whole network, and the number of steps that reused some.
    features: Tensor | None = None
    reused_count: int = 0

    @property
    def row_count(self) -> int:
        """Return the number of rows in a batch: 2 with guidance, the unconditional one first; 1 without, or if a peer
        computes the unconditional one."""
        return self.seen.states.shape[0]

    @property
    def seen(self) -> Conditioning:
        """Return the conditioning of the rows computed here."""
        return self.conditioning.rows(1, 2) if self.conditional_only else self.conditioning

    @property
    def done(self) -> bool:
        """Return whether no step is left."""
        return self.state.step_index >= self.schedule.step_count

    @property
    def is_thinned(self) -> bool:
        """Return whether the request has skipped steps: captures from here on would not match another schedule's
        latents."""
        thinned = self.schedule.order.thinned
        return bool(thinned) and self.state.step_index > thinned[0]

    @property
    def reuses_features(self) -> bool:
        """Return whether the next step reuses deep features; it runs the whole network if there are none yet."""
        return self.features is not None and self._may_reuse(self.state.step_index)

    @property
    def keeps_features(self) -> bool:
        """Return whether the step after the next one reuses the next one's deep features."""
        following = self.state.step_index + 1
        return following < self.schedule.step_count and self._may_reuse(following)

    def _may_reuse(self, step: int) -> bool:
        full = self.request.full_steps
        return bool(full) and step > full[0] and step not in full

    @property
    def timestep(self) -> float:
        """Return the network's timestep of the next step."""
        return float(self.schedule.timesteps[self.state.step_index])

    @property
    def step_amplifies_rounding(self) -> bool:
        """Return whether a difference in the last bit of the next prediction may be visible in the image: subtracted
        from a latent of deviation sigma it may round to one of sigma's last bits, and one step later most of the noise
        is removed."""
        return self.schedule.sigmas[self.state.step_index] > _LOUD_SIGMA


def schedule_for(
    model: DiffusionModel, spec: GenerationSpec, thinned_steps: tuple[int, ...] = (), bridge: tuple[int, ...] = ()
) -> Schedule:
    """Return the schedule of a request's sampler; from `thinned_steps[0]` on only these steps are taken, and the steps
    of a `bridge` at other levels. Raises InvalidArgument if steps or eta do not fit the scheduler."""
    config = model.scheduler_config(spec.scheduler)
    if spec.sigma_spacing is not None and isinstance(config, DiffusionConfig):
        config = replace(config, sigma_spacing=spec.sigma_spacing)
    if isinstance(config, FlowConfig) and config.use_dynamic_shifting:
        config = replace(config, image_tokens=model.image_tokens(spec.width_px, spec.height_px))
    return make_schedule(config, spec.num_inference_steps, spec.eta, thinned_steps, bridge)


def bridge_of(start: DenoisingStart) -> tuple[int, ...]:
    """Return the steps that lead a re-noised start back to its point in the schedule; empty for other starts."""
    return start.bridge if isinstance(start, LatentStart | ImageStart) else ()


def thin(model: DiffusionModel, denoising: Denoising, steps: tuple[int, ...]) -> bool:
    """Skip all steps not in `steps` from `steps[0]` on; call it between two steps. Return False without a change if the
    request has passed `steps[0]`, is thinned already, reuses deep features, or is sampled by another worker. Raises
    InvalidArgument for steps outside the schedule."""
    schedule, request = denoising.schedule, denoising.request
    if isinstance(request.start, HalfStart) or schedule.order.thinned or request.full_steps:
        return False
    thinned = schedule_for(model, denoising.request.spec, steps, bridge_of(denoising.request.start))
    if denoising.state.step_index > steps[0]:
        return False
    denoising.schedule = thinned
    return True


@torch.inference_mode()
def prepare(
    model: DiffusionModel,
    prompts: PromptMemo,
    request: DenoisingRequest,
    adapters: AdapterSet = (),
    row: PerSampleAdapters | None = None,
) -> Denoising:
    """Return the state of a request before its first step: conditioning, schedule and initial latent. Noise is drawn as
    in diffusers' pipelines: on the CPU, from the request's seed, in the order image encoder, latent, steps. For
    `adapters` and `row` see `condition`."""
    start = request.start
    schedule = start.steps if isinstance(start, HalfStart) else _own_schedule(model, request)
    generator = torch.Generator("cpu").manual_seed(request.spec.seed)
    conditioning, truncated = condition(model, prompts, request, adapters, row)
    state, known = _initial_state(model, schedule, request, generator)
    denoising = Denoising(request, schedule, state, conditioning, generator, prompt_truncated=truncated, known=known)
    if model.info.sees_mask:
        denoising.conditioning = _with_mask(denoising.conditioning, _masked_channels(model, request, generator))
    return denoising


def _own_schedule(model: DiffusionModel, request: DenoisingRequest) -> Schedule:
    thinned = request.thinned_steps
    if thinned and thinned[0] < request.start.first_step:
        raise InvalidArgument.of("thinned_steps", f"must not begin before step {request.start.first_step}")
    return schedule_for(model, request.spec, thinned, bridge_of(request.start))


@torch.inference_mode()
def condition(
    model: DiffusionModel,
    prompts: PromptMemo,
    request: DenoisingRequest,
    adapters: AdapterSet = (),
    row: PerSampleAdapters | None = None,
) -> tuple[Conditioning, bool]:
    """Return the denoiser's conditioning for a request, and whether a prompt was truncated. `adapters` change the text
    encoders; `row` holds their changes of the denoiser if its weights do not."""
    if isinstance(request.start, HalfStart):
        return model.project(request.start.conditioning, stack_adapters([row], 1)), False
    spec = prompts.with_words(request.spec, adapters)
    guided = model.info.is_guided(spec.guidance_scale)
    wanted, unwanted, chunk_count = read_prompts(model, spec, guided=guided)
    prompt = prompts.encode(wanted, clip_skip=spec.clip_skip, chunk_count=chunk_count, adapters=adapters)
    texts = [prompt]
    if guided:
        # All layers, as in diffusers' pipelines.
        texts = [prompts.encode(unwanted, negative=True, chunk_count=chunk_count, adapters=adapters), prompt]
    rows = [model.conditioning(text, spec.width_px, spec.height_px, spec.guidance_scale) for text in texts]
    beside = stack_adapters([row], len(rows))
    conditioning = model.project(Conditioning.concatenate(rows), beside)
    return conditioning, any(text.truncated for text in texts)


def condition_again(
    model: DiffusionModel,
    prompts: PromptMemo,
    denoising: Denoising,
    adapters: AdapterSet,
    row: PerSampleAdapters | None,
) -> None:
    """Recompute the conditioning of a request with its adapters; its mask is kept. Deep features of the network without
    them are dropped."""
    denoising.features = None
    masked = denoising.conditioning.masked
    conditioning, _ = condition(model, prompts, denoising.request, adapters, row)
    denoising.conditioning = replace(conditioning, masked=masked)


def _with_mask(conditioning: Conditioning, masked: Tensor) -> Conditioning:
    return replace(conditioning, masked=masked.expand(conditioning.states.shape[0], -1, -1, -1))


def _masked_channels(model: DiffusionModel, request: DenoisingRequest, generator: torch.Generator) -> Tensor:
    """Return the mask channels of a network that takes masks; without a mask the known region is empty."""
    spec, start = request.spec, request.start
    pixels, mask = torch.zeros(1, 3, spec.height_px, spec.width_px), torch.ones(1, 1, spec.height_px, spec.width_px)
    if isinstance(start, ImageStart) and start.mask is not None:
        pixels, mask = kept_pixels(start.pixels, start.mask), start.mask
    kept = model.encode_image(pixels, generator)
    return masked_channels(kept, cells_of(mask, kept.shape).to(kept.device, kept.dtype))


def _initial_state(
    model: DiffusionModel, schedule: Schedule, request: DenoisingRequest, generator: torch.Generator
) -> tuple[SamplerState, KnownRegion | None]:
    """Return the state before the first step, and the known region of a masked image."""
    match request.start:
        case NoiseStart():
            shape = model.latent_shape(request.spec.width_px, request.spec.height_px)
            return SamplerState(schedule.initial_latent(_noise(model, shape, generator)), 0), None
        case HalfStart(_, steps):
            assert steps.asked is not None
            return SamplerState(steps.asked.latent, steps.asked.step_index), None
        case LatentStart(latent, first_step, bridge):
            stored = latent.to(model.device, model.dtype)
            if bridge:
                noise = _noise(model, stored.shape, _renoising_generator(request.spec.seed))
                stored = renoised_latent(schedule, stored, bridge[-1], first_step, noise)
            return schedule.from_variance_preserving(stored, first_step), None
        case ImageStart():
            return _state_from_image(model, schedule, request.start, generator)


def _state_from_image(
    model: DiffusionModel, schedule: Schedule, start: ImageStart, generator: torch.Generator
) -> tuple[SamplerState, KnownRegion | None]:
    """Return the state and the known region of an image start. Noise is drawn in diffusers' order; the image is encoded
    only if it is needed."""
    sees_mask, shape = model.info.sees_mask, model.latent_shape(start.pixels.shape[-1], start.pixels.shape[-2])
    clean = None if sees_mask and start.from_noise else model.encode_image(start.pixels, generator)
    noise = _noise(model, shape, generator)
    if start.from_noise or clean is None:
        state = SamplerState(schedule.initial_latent(noise), start.first_step)
    elif start.first_step == schedule.step_count:
        state = SamplerState(clean, start.first_step)
    else:
        state = SamplerState(schedule.noised_latent(clean, noise, start.first_step), start.first_step)
    if start.mask is None or sees_mask or clean is None:
        return state, None
    if schedule.needs_noise:
        # diffusers encodes the known region here, for networks that take it: a stochastic encoder advances the
        # generator before the steps do.
        model.encode_image(kept_pixels(start.pixels, start.mask), generator)
    mask = cells_of(start.mask, clean.shape).to(model.device, model.dtype)
    return state, KnownRegion(mask, clean, noise)


def _renoising_generator(seed: int) -> torch.Generator:
    """Return a generator with other noise than an image's initial noise of that seed: the donor may have had the same
    seed, and its latent holds that noise, which must not be added again."""
    digest = hashlib.sha256(f"renoised {seed}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8]))


def _noise(model: DiffusionModel, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=model.dtype).to(model.device, non_blocking=True)


def fill_model_input(denoising: Denoising, latents: Tensor, timesteps: Tensor) -> None:
    """Write the next step's input into `latents` (rows, channels, height, width) and `timesteps` (rows,)."""
    denoising.schedule.fill_model_input(denoising.state, latents)
    timesteps.fill_(denoising.timestep)


def model_input(model: DiffusionModel, denoising: Denoising) -> DenoiserInput:
    """Return the next step's input of one request, in new tensors."""
    return _input_of(model, denoising, denoising.seen)


def half_input(model: DiffusionModel, denoising: Denoising) -> DenoiserInput:
    """Return the next step's input of a guided request's unconditional row, in new tensors."""
    return _input_of(model, denoising, denoising.conditioning.rows(0, 1))


def _input_of(model: DiffusionModel, denoising: Denoising, conditioning: Conditioning) -> DenoiserInput:
    latent, row_count = denoising.state.latent, conditioning.states.shape[0]
    latents = latent.new_empty((row_count, *latent.shape[1:]), dtype=model.dtype)
    timesteps = torch.empty(row_count, dtype=torch.float32, device=model.device)
    fill_model_input(denoising, latents, timesteps)
    terms = model.time_terms(denoising.timestep, row_count)
    images = stack_image_prompts([denoising.request.image_prompts], row_count, row_count)
    return DenoiserInput(latents, timesteps, conditioning, time_terms=terms, image_prompts=images)


def take_step(model: DiffusionModel, denoising: Denoising, prediction: Tensor) -> None:
    """Advance a request by the network's prediction for its rows: guide, advance the sampler, restore the known region.

    Guidance is computed image by image even in a batch, where it costs microseconds: the arithmetic of a request then
    never depends on the rest of the batch.
    """
    if prediction.shape[0] == 2:
        unconditional, conditional = prediction.chunk(2)
        scale = denoising.request.spec.guidance_scale + model.info.guidance_offset
        prediction = model.guided(unconditional, conditional, scale)
    schedule = denoising.schedule
    noise = _noise(model, prediction.shape, denoising.generator) if schedule.needs_noise else None
    denoising.state, denoising.predicted_clean = schedule.advance(denoising.state, prediction, noise)
    if denoising.known is not None:
        denoising.state = denoising.known.restore(schedule, denoising.state)
        denoising.predicted_clean = denoising.known.restore_clean(denoising.predicted_clean)


def denoise_step(model: DiffusionModel, denoising: Denoising) -> None:
    """Take one step of one request without a batch."""
    take_step(model, denoising, model.predict(model_input(model, denoising)))
