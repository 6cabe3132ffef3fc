"""What a family offers to the step engine: prepare conditioning, predict, and both ways through the autoencoder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from pentimento.diffusion.schedulers import SchedulerConfig
from pentimento.domain.generation import GenerationSpec, NoiseForm, Scheduler


@dataclass(frozen=True)
class LoadedModelInfo:
    """What a loaded model is and takes; sizes in pixels. `schedulers` begins with the checkpoint's own;
    `longest_side_px` is None where any size goes."""

    family: str
    model_digest: str
    vae_digest: str
    scheduler_digest: str
    prediction_type: str
    noise_form: NoiseForm
    default_width_px: int
    default_height_px: int
    size_multiple_px: int
    schedulers: tuple[Scheduler, ...]
    train_step_count: int
    longest_side_px: int | None = None
    # Its network sees a mask and what stays under it beside the latents (an inpainting checkpoint).
    sees_mask: bool = False


@dataclass(frozen=True)
class Conditioning:
    """What the denoiser sees besides latents and timesteps, by rows: `states` (rows, tokens, width) of the text, and
    for families that take them `pooled` (rows, width) of the text and `sizes` (rows, 6), SDXL's micro-conditioning
    (Podell et al. 2023, section 2.2). `projected` (rows, tokens, widths) holds what the network makes of `states` in
    every step, computed once; None where it computes that itself. `masked` (rows, 1 + channels, height, width) is of
    networks that see masks: the mask of the latent, and the latent of what stays."""

    states: Tensor
    pooled: Tensor | None = None
    sizes: Tensor | None = None
    projected: Tensor | None = None
    masked: Tensor | None = None

    @property
    def parts(self) -> "tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]":
        """Its tensors in the order of the fields."""
        return (self.states, self.pooled, self.sizes, self.projected, self.masked)

    def rows(self, start: int, stop: int) -> "Conditioning":
        """Return some of its rows, as views."""
        states, *others = self.parts
        return Conditioning(states[start:stop], *(part if part is None else part[start:stop] for part in others))

    @staticmethod
    def concatenate(parts: "Sequence[Conditioning]") -> "Conditioning":
        """Return the rows of parts of one model, one after the other."""
        return Conditioning(
            torch.cat([part.states for part in parts]),
            _concatenate_optional([part.pooled for part in parts]),
            _concatenate_optional([part.sizes for part in parts]),
            _concatenate_optional([part.projected for part in parts]),
            _concatenate_optional([part.masked for part in parts]),
        )


def _concatenate_optional(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


@dataclass(frozen=True)
class PromptStates:
    """A prompt as the text encoders see it, one row still without `sizes`; `truncated` when all had to cut it off."""

    conditioning: Conditioning
    truncated: bool


@dataclass(frozen=True)
class ControlResiduals:
    """What ControlNets add, rows as in the latents: to a UNet's skip connections, shallow to deep, and to its mid
    block; to a transformer's blocks, first to last, of which the last `awaited_count` may still be under way.
    `NO_CONTROL` is the one without any."""

    down_block_residuals: tuple[Tensor, ...] = ()
    mid_block_residual: Tensor | None = None
    block_residuals: tuple[Tensor, ...] = ()
    awaited_count: int = 0

    @property
    def block_count(self) -> int:
        """Residuals for a transformer's blocks, with those that are under way."""
        return len(self.block_residuals) + self.awaited_count

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its tensors: of the down blocks, of the mid block, of a transformer's blocks."""
        mid = () if self.mid_block_residual is None else (self.mid_block_residual,)
        return (*self.down_block_residuals, *mid, *self.block_residuals)

    def on(self, device: torch.device) -> "ControlResiduals":
        """Return the same on a device, over the very tensors where they lie there."""
        mid = self.mid_block_residual
        return replace(
            self,
            down_block_residuals=tuple(tensor.to(device) for tensor in self.down_block_residuals),
            mid_block_residual=None if mid is None else mid.to(device),
            block_residuals=tuple(tensor.to(device) for tensor in self.block_residuals),
        )


# Nothing is controlled at this step: it lies outside the share of the schedule in which the ControlNets act.
NO_CONTROL = ControlResiduals()


def residual_behind(block: int, block_count: int, residual_count: int) -> int:
    """Return which of its ControlNet's residuals is added behind a transformer's block, by diffusers' rule."""
    return int(block / (block_count / residual_count))


@dataclass(frozen=True)
class DenoiserEncoding:
    """What the first half of a forward pass hands to the second: tensors by rows, as in the latents, so that rows of
    several first halves may share a second one. Without tensors the network has no halves, and the second one is the
    whole pass. Of a transformer `blocks_done` of its `block_count` blocks have run; the residual behind the last of
    them is not added yet."""

    tensors: tuple[Tensor, ...] = ()
    blocks_done: int = 0
    block_count: int = 0

    def reach(self, residuals: ControlResiduals | None) -> int:
        """Return how many blocks can have run before one needs a residual that is not there; of a UNet none."""
        if residuals is None:
            return self.blocks_done
        there, of_all = len(residuals.block_residuals), residuals.block_count
        for done in range(self.blocks_done, self.block_count) if residuals.awaited_count else ():
            if residual_behind(done - 1, self.block_count, of_all) >= there:
                return done
        return self.block_count

    def rows(self, start: int, stop: int) -> "DenoiserEncoding":
        """Return some of its rows, as views."""
        return replace(self, tensors=tuple(tensor[start:stop] for tensor in self.tensors))

    @staticmethod
    def concatenate(parts: "Sequence[DenoiserEncoding]", row_count: int) -> "DenoiserEncoding":
        """Return the rows of parts of one model, one after the other, and zeros up to `row_count`. Where one part has
        no tensors, or others than the rest (time terms of its own, other blocks), the result has none."""
        if len({(len(part.tensors), part.blocks_done) for part in parts}) != 1 or not parts[0].tensors:
            return DenoiserEncoding()
        if len(parts) == 1 and parts[0].tensors[0].shape[0] == row_count:
            return parts[0]
        columns = zip(*(part.tensors for part in parts), strict=True)
        return replace(parts[0], tensors=tuple(_filled_up(torch.cat(column), row_count) for column in columns))


def _filled_up(rows: Tensor, row_count: int) -> Tensor:
    missing = row_count - rows.shape[0]
    return torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))]) if missing else rows


@dataclass(frozen=True)
class LowRankUpdate:
    """What one layer adds per row, up(down(x)) (Hu et al. 2021), scales multiplied in: up (rows, outputs, rank), down
    (rows, rank, inputs) of a linear layer, (rows, rank, inputs, height, width) of a convolution; zero for rows without
    an adapter. The rows are those of the batch from `first_row` on; the others stay as they are."""

    down: Tensor
    up: Tensor
    first_row: int = 0

    @property
    def rows(self) -> slice:
        """The rows of the batch that it changes."""
        return slice(self.first_row, self.first_row + self.down.shape[0])

    @cached_property
    def down_columns(self) -> Tensor:
        """`down` as (rows, inputs, rank)."""
        return self.down.transpose(1, 2).contiguous()

    @cached_property
    def up_columns(self) -> Tensor:
        """`up` as (rows, rank, outputs)."""
        return self.up.transpose(1, 2).contiguous()

    @cached_property
    def down_taps(self) -> Tensor:
        """A convolution's `down` as (rows, rank * height * width, inputs), the kernel's taps turned around, in the
        order in which torch's `fold` puts them together."""
        return self.down.flip(3, 4).permute(0, 1, 3, 4, 2).flatten(1, 3).contiguous()


@dataclass(frozen=True)
class Canvas:
    """Where a kernel's taps are put together: `whole` (rows, rank, padded height, padded width), views of it for each
    tap, and `middle`, what lies where the inputs do. `taps_shape` is (rows, rank, taps, height, width)."""

    whole: Tensor
    places: tuple[Tensor, ...]
    middle: Tensor
    taps_shape: tuple[int, ...]


Canvases = dict[tuple[object, ...], Canvas]


@dataclass(frozen=True)
class PerSampleAdapters:
    """LoRAs beside unpatched weights, so that a batch may mix them: updates by the name of the denoiser's module."""

    updates: Mapping[str, LowRankUpdate]

    @cached_property
    def by_layer(self) -> dict[torch.nn.Module, dict[torch.nn.Module, LowRankUpdate]]:
        """By network, what was found of it: the updates by layer. One thread only."""
        return {}

    @cached_property
    def canvases(self) -> Canvases:
        """Scratch memory of its convolutions, by shape. One thread only."""
        return {}


@dataclass(frozen=True)
class AsAlone:
    """Pictures of a batch whose predictions are wanted with the bits that they have alone: `pictures` by their place,
    `rows_each` rows a picture, of all in the batch."""

    rows_each: int
    pictures: tuple[int, ...]


@dataclass(frozen=True)
class DenoiserInput:
    """One forward pass. Rows may belong to different pictures, each with its own timestep: latents
    (rows, channels, height, width) scaled by their sampler, timesteps (rows,) or one for all. `time_terms`
    (rows, widths) holds what the network makes of the timesteps; None where it computes that itself."""

    latents: Tensor
    timesteps: Tensor
    conditioning: Conditioning
    residuals: ControlResiduals | None = None
    adapters: PerSampleAdapters | None = None
    as_alone: AsAlone | None = None
    time_terms: Tensor | None = None


@dataclass(frozen=True)
class BatchKey:
    """Pictures of one model with equal keys may share a forward pass. `alone` is 0, or a number that no other picture
    has."""

    width_px: int
    height_px: int
    guided: bool
    alone: int = 0


def is_guided(spec: GenerationSpec) -> bool:
    """Return whether classifier-free guidance runs, by diffusers' rule."""
    return spec.guidance_scale > 1.0


def batch_key(spec: GenerationSpec) -> BatchKey:
    """Return the key of requests like `spec`."""
    return BatchKey(spec.width_px, spec.height_px, is_guided(spec))


class DiffusionModel(Protocol):
    """A loaded model. Only the engine's thread calls it, but for `decode_latent`, which one other thread may."""

    @property
    def info(self) -> LoadedModelInfo:
        """What the model is and takes."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of latents and weights."""
        ...

    @property
    def denoiser(self) -> torch.nn.Module:
        """The network behind `predict`, for what works on its layers: compilation, adapters."""
        ...

    @property
    def picture_decoder(self) -> torch.nn.Module:
        """The network behind `decode_latent`, for what works on its layers."""
        ...

    @property
    def adaptable(self) -> Mapping[str, torch.nn.Module]:
        """The networks that a LoRA may change, by the pipeline's name of the component; the denoiser first."""
        ...

    def scheduler_config(self, scheduler: Scheduler) -> SchedulerConfig:
        """Return the configuration of one of the
        model's schedulers."""
        ...

    def latent_shape(self, width_px: int, height_px: int) -> tuple[int, int, int, int]:
        """Return the shape of a latent,
        (1, channels, height, width),
        for a picture of that size."""
        ...

    def encode_prompt(self, prompt: str, *, negative: bool = False) -> PromptStates:
        """Return the prompt's text states, pooled text and truncation. An empty `negative` prompt is an absent one,
        which some families encode as zeros."""
        ...

    def record_texts(self, compiler: Callable[..., Any]) -> None:
        """Have `compiler`, which `CompiledDenoiser` is given too, make what encodes prompts from here on."""
        ...

    def conditioning(self, prompt: PromptStates, width_px: int, height_px: int) -> Conditioning:
        """Return one row with all that the family conditions on."""
        ...

    def project(self, conditioning: Conditioning, adapters: PerSampleAdapters | None = None) -> Conditioning:
        """Return the conditioning with `projected`, where the family has such; the rows of one picture, and their
        adapters."""
        ...

    def forget_time_terms(self) -> None:
        """Forget what was kept of weights that have changed."""
        ...

    def time_terms(self, timestep: float, row_count: int) -> Tensor | None:
        """Return `DenoiserInput.time_terms` of a picture's rows; None where they depend on more than the timestep."""
        ...

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the network's prediction, shaped as the latents. `as_alone` is kept where that is possible:
        `row_kernels`."""
        ...

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return what is computed before any residual is needed: of a UNet the encoder and the mid block, of a
        transformer the first block (Katz, section 5). Nothing where the network has no halves."""
        ...

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        """Return the encoding of the same rows once so many of a transformer's blocks have run, fewer than all; their
        residuals are in `inputs.residuals`. A UNet's as it is."""
        ...

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction from an encoding of the same rows and `inputs.residuals`, with the bits of
        `predict`."""
        ...

    def example_residuals(self, encoding: DenoiserEncoding) -> ControlResiduals | None:
        """Return zeros shaped as every ControlNet's residuals for rows of this encoding; None where that differs from
        one ControlNet to the next."""
        ...

    def encode_image(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Return the clean latent of pixels (1, 3, height, width) in -1..1; a stochastic encoder draws from
        `generator`."""
        ...

    def condition(self, pixels: Tensor, row_count: int, generator: torch.Generator, *, unshifted: bool) -> Tensor:
        """Return what the family's ControlNets are told of pixels (1, 3, height, width) in 0..1: a UNet's the pixels, a
        transformer's a latent for each of a picture's rows, drawn from `generator`, without the autoencoder's shift
        where `unshifted`."""
        ...

    def decode_latent(self, latent: Tensor) -> Tensor:
        """Return the pixels (1, 3, height, width), about -1..1, of a clean latent."""
        ...
