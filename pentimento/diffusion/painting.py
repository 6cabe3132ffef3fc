"""A picture in the making, as free functions: prepare, then one denoising step after the other.

painting = prepare(model, prompts, request)
while not painting.done:
    denoise_step(model, painting)
latent = painting.state.latent          # for `model.decode_latent`

A step has two halves around the network, `fill_model_input` and `take_step`, so that a batch can share the network.
"""

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pentimento.diffusion.families.model import (
    Conditioning,
    DenoiserInput,
    DiffusionModel,
    PerSampleAdapters,
    is_guided,
)
from pentimento.diffusion.guidance_half import HalfStart
from pentimento.diffusion.inpainting import KnownRegion, cells_of, kept_pixels, masked_channels
from pentimento.diffusion.loras.bypass import stack_adapters
from pentimento.diffusion.loras.lora import AdapterSet
from pentimento.diffusion.painting_sources import ControlSource, GuidancePeer, LoraSource
from pentimento.diffusion.prompts import PromptMemo
from pentimento.diffusion.schedulers import SamplerState, Schedule, make_schedule, renoised_latent
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import GenerationSpec, NoiseForm


@dataclass(frozen=True)
class NoiseStart:
    """A start from the seed's noise: all steps."""

    first_step: int = 0


@dataclass(frozen=True)
class LatentStart:
    """A start from a stored latent (1, channels, height, width) at unit variance, resumed before `first_step`
    (NIRVANA). With a `bridge` (`StepSequence`) it is of the step `bridge[-1]`, and is noised again to the level of
    `bridge[0]` by the request's seed."""

    latent: Tensor
    first_step: int
    bridge: tuple[int, ...] = ()


@dataclass(frozen=True)
class ImageStart:
    """A start from pixels (1, 3, height, width) in -1..1, re-noised to the level before `first_step` (MoDM, and
    img2img). With a `mask` (1, 1, height, width) of 0 and 1 the picture is painted where that is 1, and what else there
    is of the image stays; `from_noise`: nothing of the image is where it is painted. `bridge`: as of `LatentStart`."""

    pixels: Tensor
    first_step: int
    mask: Tensor | None = None
    from_noise: bool = False
    bridge: tuple[int, ...] = ()


PaintingStart = NoiseStart | LatentStart | ImageStart | HalfStart

# Above it a last bit of a latent that carries its noise, as Euler's do, is worth more than 1e-5. Schedules that end in
# all but pure noise begin at 4,000 and more, the others at 15 to 160.
_LOUD_SIGMA = 100.0


@dataclass(frozen=True)
class PaintingRequest:
    """What to paint. `deadline` is on the engine's monotonic clock in seconds; latents are handed out before each of
    `capture_steps`, the predicted clean latent after every `preview_interval_steps` steps (0: never). `alone`: no other
    picture is in its forward passes. `thinned_steps`: from the first of them on these alone are taken; empty for all.
    What it captures and the peers, ControlNets and LoRAs that it has go by the numbers of the steps as ever."""

    spec: GenerationSpec
    start: PaintingStart
    capture_steps: frozenset[int] = frozenset()
    preview_interval_steps: int = 0
    deadline: float | None = None
    control: ControlSource | None = None
    loras: LoraSource | None = None
    alone: bool = False
    peer: GuidancePeer | None = None
    thinned_steps: tuple[int, ...] = ()


@dataclass
class Painting:
    """The state of one request between steps. Only the engine's thread touches it."""

    request: PaintingRequest
    schedule: Schedule
    state: SamplerState
    conditioning: Conditioning
    generator: torch.Generator
    predicted_clean: Tensor | None = None
    prompt_truncated: bool = False
    # In the next step: a peer computes the unconditional row.
    conditional_only: bool = False
    # What stays of a masked picture.
    known: KnownRegion | None = None

    @property
    def row_count(self) -> int:
        """Its rows in a batch: two with guidance, the unconditional one first; of these the second alone where a peer
        computes the other."""
        return self.seen.states.shape[0]

    @property
    def seen(self) -> Conditioning:
        """What the network is conditioned on here."""
        return self.conditioning.rows(1, 2) if self.conditional_only else self.conditioning

    @property
    def done(self) -> bool:
        """Whether no step is left."""
        return self.state.step_index >= self.schedule.step_count

    @property
    def is_thinned(self) -> bool:
        """Whether it has left out steps: what it captured from here on would not be what another picture's schedule
        has there."""
        thinned = self.schedule.order.thinned
        return bool(thinned) and self.state.step_index > thinned[0]

    @property
    def timestep(self) -> float:
        """What the network is conditioned on in the next step."""
        return float(self.schedule.timesteps[self.state.step_index])

    @property
    def step_amplifies_rounding(self) -> bool:
        """Whether a difference in the last bit of the next prediction may be seen in the picture: taken from a latent
        of deviation sigma it is rounded to one of sigma's last bits, or not, and most of the noise is gone one step
        later."""
        return self.schedule.sigmas[self.state.step_index] > _LOUD_SIGMA


def schedule_for(
    model: DiffusionModel, spec: GenerationSpec, thinned_steps: tuple[int, ...] = (), bridge: tuple[int, ...] = ()
) -> Schedule:
    """Return the schedule of a request's sampler; of its steps from `thinned_steps[0]` on those alone are taken, and
    those of a `bridge` at other levels. Raises InvalidArgument when steps or eta do not fit the scheduler."""
    config = model.scheduler_config(spec.scheduler)
    return make_schedule(config, spec.num_inference_steps, spec.eta, thinned_steps, bridge)


def bridge_of(start: PaintingStart) -> tuple[int, ...]:
    """Return the steps that lead a start which is noised again back to where it enters the schedule."""
    return start.bridge if isinstance(start, LatentStart | ImageStart) else ()


def thin(model: DiffusionModel, painting: Painting, steps: tuple[int, ...]) -> bool:
    """Leave out, from `steps[0]` on, all other steps of a painting, between two of its steps. False, and nothing has
    changed, for one that has passed that step, is thinned already, or whose steps another worker samples. Raises
    InvalidArgument for steps that are not of its schedule."""
    schedule = painting.schedule
    if isinstance(painting.request.start, HalfStart) or schedule.order.thinned:
        return False
    thinned = schedule_for(model, painting.request.spec, steps, bridge_of(painting.request.start))
    if painting.state.step_index > steps[0]:
        return False
    painting.schedule = thinned
    return True


def first_img2img_step(step_count: int, strength: float, noise_form: NoiseForm) -> int:
    """Return the step at which img2img starts, by diffusers' rules: about `steps * strength` steps remain, rounded down
    for diffusion models and up for flows."""
    if noise_form is NoiseForm.FLOW_MATCHING:
        return int(max(step_count - min(step_count * strength, step_count), 0))
    return step_count - min(int(step_count * strength), step_count)


@torch.inference_mode()
def prepare(
    model: DiffusionModel,
    prompts: PromptMemo,
    request: PaintingRequest,
    adapters: AdapterSet = (),
    row: PerSampleAdapters | None = None,
) -> Painting:
    """Return a painting before its first step: conditioning, schedule and initial latent. Noise is drawn as diffusers'
    pipelines draw it: on the CPU, from the request's seed, in the order image encoder, latent, steps. For `adapters`
    and `row` see `condition`."""
    start = request.start
    schedule = start.steps if isinstance(start, HalfStart) else _own_schedule(model, request)
    generator = torch.Generator("cpu").manual_seed(request.spec.seed)
    conditioning, truncated = condition(model, prompts, request, adapters, row)
    state, known = _initial_state(model, schedule, request, generator)
    painting = Painting(request, schedule, state, conditioning, generator, prompt_truncated=truncated, known=known)
    if model.info.sees_mask:
        painting.conditioning = _with_mask(painting.conditioning, _masked_channels(model, request, generator))
    return painting


def _own_schedule(model: DiffusionModel, request: PaintingRequest) -> Schedule:
    thinned = request.thinned_steps
    if thinned and thinned[0] < request.start.first_step:
        raise InvalidArgument.of("thinned_steps", f"must not begin before step {request.start.first_step}")
    return schedule_for(model, request.spec, thinned, bridge_of(request.start))


@torch.inference_mode()
def condition(
    model: DiffusionModel,
    prompts: PromptMemo,
    request: PaintingRequest,
    adapters: AdapterSet = (),
    row: PerSampleAdapters | None = None,
) -> tuple[Conditioning, bool]:
    """Return what the denoiser sees of a request besides latents, and whether its prompt was cut off. `adapters` change
    the text encoders; `row` is what they change of the denoiser where its weights do not hold them."""
    if isinstance(request.start, HalfStart):
        return model.project(request.start.conditioning, stack_adapters([row], 1)), False
    spec = request.spec
    prompt = prompts.encode(spec.prompt, adapters=adapters)
    texts = [prompt]
    if is_guided(spec):
        texts = [prompts.encode(spec.negative_prompt, negative=True, adapters=adapters), prompt]
    rows = [model.conditioning(text, spec.width_px, spec.height_px) for text in texts]
    beside = stack_adapters([row], len(rows))
    conditioning = model.project(Conditioning.concatenate(rows), beside)
    return conditioning, any(text.truncated for text in texts)


def condition_anew(
    model: DiffusionModel,
    prompts: PromptMemo,
    painting: Painting,
    adapters: AdapterSet,
    row: PerSampleAdapters | None,
) -> None:
    """Change what a painting is conditioned on to what its adapters make of it from here on; its mask stays."""
    masked = painting.conditioning.masked
    conditioning, _ = condition(model, prompts, painting.request, adapters, row)
    painting.conditioning = replace(conditioning, masked=masked)


def _with_mask(conditioning: Conditioning, masked: Tensor) -> Conditioning:
    return replace(conditioning, masked=masked.expand(conditioning.states.shape[0], -1, -1, -1))


def _masked_channels(model: DiffusionModel, request: PaintingRequest, generator: torch.Generator) -> Tensor:
    """What a network that sees masks is told; of a picture without a mask that nothing stays."""
    spec, start = request.spec, request.start
    pixels, mask = torch.zeros(1, 3, spec.height_px, spec.width_px), torch.ones(1, 1, spec.height_px, spec.width_px)
    if isinstance(start, ImageStart) and start.mask is not None:
        pixels, mask = kept_pixels(start.pixels, start.mask), start.mask
    kept = model.encode_image(pixels, generator)
    return masked_channels(kept, cells_of(mask, kept.shape).to(kept.device, kept.dtype))


def _initial_state(
    model: DiffusionModel, schedule: Schedule, request: PaintingRequest, generator: torch.Generator
) -> tuple[SamplerState, KnownRegion | None]:
    """The state before the first step, and what stays of a masked picture."""
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
    """Drawn in diffusers' order: what needs no encoded image has none."""
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
        # diffusers encodes what stays here, for networks that see it: a stochastic encoder draws before the steps do.
        model.encode_image(kept_pixels(start.pixels, start.mask), generator)
    mask = cells_of(start.mask, clean.shape).to(model.device, model.dtype)
    return state, KnownRegion(mask, clean, noise)


def _renoising_generator(seed: int) -> torch.Generator:
    """Return one whose noise is not what a picture of that seed begins with: the donor may have had the same seed, and
    its latent holds that noise, which must not be added to itself."""
    digest = hashlib.sha256(f"renoised {seed}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8]))


def _noise(model: DiffusionModel, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=model.dtype).to(model.device, non_blocking=True)


def fill_model_input(painting: Painting, latents: Tensor, timesteps: Tensor) -> None:
    """Write the next step's input into `latents` (rows, channels, height, width) and `timesteps` (rows,)."""
    painting.schedule.fill_model_input(painting.state, latents)
    timesteps.fill_(painting.timestep)


def model_input(model: DiffusionModel, painting: Painting) -> DenoiserInput:
    """Return the next step's input of one picture alone, in tensors of its own."""
    return _input_of(model, painting, painting.seen)


def half_input(model: DiffusionModel, painting: Painting) -> DenoiserInput:
    """Return the next step's input of a guided picture's unconditional row alone, in tensors of its own."""
    return _input_of(model, painting, painting.conditioning.rows(0, 1))


def _input_of(model: DiffusionModel, painting: Painting, conditioning: Conditioning) -> DenoiserInput:
    latent, row_count = painting.state.latent, conditioning.states.shape[0]
    latents = latent.new_empty((row_count, *latent.shape[1:]), dtype=model.dtype)
    timesteps = torch.empty(row_count, dtype=torch.float32, device=model.device)
    fill_model_input(painting, latents, timesteps)
    terms = model.time_terms(painting.timestep, row_count)
    return DenoiserInput(latents, timesteps, conditioning, time_terms=terms)


def take_step(model: DiffusionModel, painting: Painting, prediction: Tensor) -> None:
    """Advance a painting by the network's prediction for its rows: guide, move the sampler, put back what a mask keeps.

    Classifier-free guidance (Ho and Salimans 2022) in diffusers' order of operations; row by row even in a batch, where
    it costs microseconds: the arithmetic of a picture then never depends on who shares the batch.
    """
    if prediction.shape[0] == 2:
        unconditional, conditional = prediction.chunk(2)
        prediction = unconditional + painting.request.spec.guidance_scale * (conditional - unconditional)
    schedule = painting.schedule
    noise = _noise(model, prediction.shape, painting.generator) if schedule.needs_noise else None
    painting.state, painting.predicted_clean = schedule.advance(painting.state, prediction, noise)
    if painting.known is not None:
        painting.state = painting.known.restore(schedule, painting.state)
        painting.predicted_clean = painting.known.restore_clean(painting.predicted_clean)


def denoise_step(model: DiffusionModel, painting: Painting) -> None:
    """Take one step of one picture alone."""
    take_step(model, painting, model.predict(model_input(model, painting)))
