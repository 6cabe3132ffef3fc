"""Define the interface of a model family to the step engine: conditioning, prediction, and the autoencoder."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.families.image_prompts import CrossAttention, ImagePromptRows
from pentimento.diffusion.families.row_updates import PerSampleAdapters
from pentimento.diffusion.inversions import BadInversion, Inversion
from pentimento.diffusion.schedulers import SchedulerConfig
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import GenerationSpec, NoiseForm, Scheduler
from pentimento.domain.prompt_syntax import WeightedPrompt
from pentimento.domain.weights import ComponentWeights


@dataclass(frozen=True)
class LoadedModelInfo:
    """Describe a loaded model and its limits; sizes in pixels. `schedulers` begins with the checkpoint's own;
    `longest_side_px` is None if there is no limit. No peer or ControlNet computes for one that `computes_alone`."""

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
    # The network takes a mask and the masked latents in addition to the latents (an inpainting checkpoint).
    sees_mask: bool = False
    # The guidance scale is an input of the network, or has no effect: one row for each image.
    guidance_distilled: bool = False
    guidance_offset: float = 0.0  # added to requests' scales, if diffusers' pipeline counts from 0
    computes_alone: bool = False

    def is_guided(self, guidance_scale: float) -> bool:
        """Return whether classifier-free guidance runs, with two rows for the image, by diffusers' rule."""
        return guidance_scale + self.guidance_offset > 1.0 and not self.guidance_distilled

    def batch_key(self, spec: GenerationSpec) -> "BatchKey":
        """Return the key of requests like `spec`."""
        return BatchKey(spec.width_px, spec.height_px, self.is_guided(spec.guidance_scale))


@dataclass(frozen=True)
class Conditioning:
    """Hold the denoiser's inputs other than latents and timesteps, by rows: `states` (rows, tokens, width) of the text,
    and for families that take them `pooled` (rows, width) of the text and `sizes` (rows, 6), SDXL's micro-conditioning
    (Podell et al. 2023, section 2.2). `projected` (rows, tokens, widths) holds keys and values of `states`, computed
    once for all steps; None if the network computes them. `masked` (rows, 1 + channels, height, width), for networks
    that take masks, holds the latent's mask and the latent of the unmasked part. `guidance` (rows,) holds the scale for
    networks that take it as an input, `token_counts` (rows,) how many of the tokens of `states` are no padding."""

    states: Tensor
    pooled: Tensor | None = None
    sizes: Tensor | None = None
    projected: Tensor | None = None
    masked: Tensor | None = None
    guidance: Tensor | None = None
    token_counts: Tensor | None = None

    @property
    def parts(self) -> "tuple[Tensor, *tuple[Tensor | None, ...]]":
        """Return the tensors in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def rows(self, start: int, stop: int) -> "Conditioning":
        """Return rows `start` to `stop`, as views."""
        states, *others = self.parts
        return Conditioning(states[start:stop], *(part if part is None else part[start:stop] for part in others))

    @staticmethod
    def concatenate(parts: "Sequence[Conditioning]") -> "Conditioning":
        """Return the rows of parts of one model, one after the other."""
        states, *others = zip(*(part.parts for part in parts), strict=True)
        return Conditioning(torch.cat(states), *map(_concatenate_optional, others))


def _concatenate_optional(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


@dataclass(frozen=True)
class PromptStates:
    """Hold an encoded prompt, one row without `sizes`; `truncated` if all encoders had to truncate it."""

    conditioning: Conditioning
    truncated: bool


@dataclass(frozen=True)
class ControlResiduals:
    """Hold the residuals that ControlNets add, rows as in the latents: to a UNet's skip connections, shallow to deep,
    and to its mid block; to a transformer's blocks, first to last. `awaited_count` further ones have not arrived yet.
    `NO_CONTROL` has no residuals."""

    down_block_residuals: tuple[Tensor, ...] = ()
    mid_block_residual: Tensor | None = None
    block_residuals: tuple[Tensor, ...] = ()
    awaited_count: int = 0

    @property
    def block_count(self) -> int:
        """Return the number of residuals for a transformer's blocks, awaited ones included."""
        return len(self.block_residuals) + self.awaited_count

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors: down blocks, mid block, a transformer's blocks."""
        mid = () if self.mid_block_residual is None else (self.mid_block_residual,)
        return (*self.down_block_residuals, *mid, *self.block_residuals)

    def on(self, device: torch.device) -> "ControlResiduals":
        """Return the residuals on a device; tensors already there are not copied."""
        mid = self.mid_block_residual
        return replace(
            self,
            down_block_residuals=tuple(tensor.to(device) for tensor in self.down_block_residuals),
            mid_block_residual=None if mid is None else mid.to(device),
            block_residuals=tuple(tensor.to(device) for tensor in self.block_residuals),
        )


# No residuals at this step: it is outside the part of the schedule that the ControlNets act on.
NO_CONTROL = ControlResiduals()


def residual_behind(block: int, block_count: int, residual_count: int) -> int:
    """Return the index of the ControlNet residual that is added after a transformer's block, by diffusers' rule."""
    return int(block / (block_count / residual_count))


@dataclass(frozen=True)
class DenoiserEncoding:
    """Hold the intermediate tensors between the first half of a forward pass and the second, by rows as in the latents,
    so that rows of several first halves may share a second one. Without tensors the network has no halves, and the
    second half is the whole pass. `blocks_done` of a transformer's `block_count` blocks have run; the residual after
    the last one is not added yet."""

    tensors: tuple[Tensor, ...] = ()
    blocks_done: int = 0
    block_count: int = 0

    def reach(self, residuals: ControlResiduals | None) -> int:
        """Return the number of blocks that can run before one needs a missing residual; 0 for a UNet."""
        if residuals is None:
            return self.blocks_done
        there, of_all = len(residuals.block_residuals), residuals.block_count
        for done in range(self.blocks_done, self.block_count) if residuals.awaited_count else ():
            if residual_behind(done - 1, self.block_count, of_all) >= there:
                return done
        return self.block_count

    def rows(self, start: int, stop: int) -> "DenoiserEncoding":
        """Return rows `start` to `stop`, as views."""
        return replace(self, tensors=tuple(tensor[start:stop] for tensor in self.tensors))

    @staticmethod
    def concatenate(parts: "Sequence[DenoiserEncoding]", row_count: int) -> "DenoiserEncoding":
        """Return the rows of parts of one model, one after the other, padded with zeros to `row_count`. If a part has
        no tensors, or the parts differ (in time terms or blocks done), the result has no tensors."""
        if len({(len(part.tensors), part.blocks_done) for part in parts}) != 1 or not parts[0].tensors:
            return DenoiserEncoding()
        if len(parts) == 1 and parts[0].tensors[0].shape[0] == row_count:
            return parts[0]
        columns = zip(*(part.tensors for part in parts), strict=True)
        return replace(parts[0], tensors=tuple(filled_up(torch.cat(column), row_count) for column in columns))


def filled_up(rows: Tensor, row_count: int) -> Tensor:
    """Return the rows padded with zeros to `row_count`."""
    missing = row_count - rows.shape[0]
    return torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))]) if missing else rows


@dataclass(frozen=True)
class AsAlone:
    """Select images of a batch that must get the same bits as alone: `pictures` holds their positions; every image of
    the batch has `rows_each` rows."""

    rows_each: int
    pictures: tuple[int, ...]


@dataclass(frozen=True)
class DenoiserInput:
    """Hold the input of one forward pass. Rows may belong to different images, each with its own timestep: latents
    (rows, channels, height, width) scaled by their sampler, timesteps (rows,) or one for all. `time_terms`
    (rows, widths) holds the projections of the timesteps; None if the network computes them."""

    latents: Tensor
    timesteps: Tensor
    conditioning: Conditioning
    residuals: ControlResiduals | None = None
    adapters: PerSampleAdapters | None = None
    as_alone: AsAlone | None = None
    time_terms: Tensor | None = None
    image_prompts: tuple[ImagePromptRows, ...] = ()

    @property
    def runs_eagerly(self) -> bool:
        """Return whether the pass has parts that compiled passes do not take."""
        return self.adapters is not None or bool(self.image_prompts)


@dataclass(frozen=True)
class BatchKey:
    """Identify requests of one model that may share a forward pass: those with equal keys. `alone` is 0, or a number
    unique to the request. `patched` names the LoRAs that must be in the weights; empty if rows can have them apart.
    `extra_tokens` counts text tokens beyond the usual ones, known once the prompt is encoded."""

    width_px: int
    height_px: int
    guided: bool
    alone: int = 0
    patched: tuple[tuple[str, float], ...] = ()
    extra_tokens: int = 0


class DiffusionModel(ABC):
    """Describe a loaded model. Only the engine's thread calls it; one other thread may call `decode_latent`. A subclass
    inherits what its family does not use: cached projections and time terms, passes in parts, encoded conditions.

    `denoiser` is the network of `predict`, `picture_decoder` that of `decode_latent`, for changes of their layers;
    `adaptable` holds the networks that a LoRA may change, by the pipeline's component name, the denoiser first. `dtype`
    is the type of latents and weights, `networks` holds all networks by component, `weights` the memory of each."""

    info: LoadedModelInfo
    device: torch.device
    dtype: torch.dtype
    denoiser: torch.nn.Module
    picture_decoder: torch.nn.Module
    adaptable: Mapping[str, torch.nn.Module]
    networks: Mapping[str, torch.nn.Module] = MappingProxyType({})
    weights: tuple[ComponentWeights, ...] = ()
    # Cross-attention layers that take image prompts, in the order of the network's modules; empty without support.
    cross_attentions: tuple[CrossAttention, ...] = ()
    # Text tokens of a prompt without a syntax, and of each further chunk. 0: all prompts have the same number.
    usual_tokens: int = 0
    chunk_tokens: int = 0

    @abstractmethod
    def scheduler_config(self, scheduler: Scheduler) -> SchedulerConfig:
        """Return the configuration of one of the model's schedulers."""

    @abstractmethod
    def latent_shape(self, width_px: int, height_px: int) -> tuple[int, int, int, int]:
        """Return the shape of a latent, (1, channels, height, width), for an image of that size."""

    @abstractmethod
    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        """Return the prompt's text states, without the last `clip_skip` layers of CLIP. Raises InvalidArgument if there
        are fewer. An empty `negative` prompt counts as absent: some families encode it as zeros."""

    def chunk_count(self, prompt: WeightedPrompt) -> int:
        """Return the number of chunks of a prompt's tokens. Raises InvalidArgument if the family takes plain text."""
        raise InvalidArgument.of("prompt_syntax", f"must be unset with the family {self.info.family}")

    def encode_weighted(
        self, prompt: WeightedPrompt, chunk_count: int, *, negative: bool = False, clip_skip: int = 0
    ) -> PromptStates:
        """Return a prompt's states as `encode_prompt` does, filled up with empty chunks to `chunk_count`."""
        raise NotImplementedError

    def extra_tokens(self, conditioning: Conditioning) -> int:
        """Return the number of text tokens beyond the usual ones."""
        return conditioning.states.shape[1] - self.usual_tokens if self.usual_tokens else 0

    def add_inversion(self, inversion: Inversion) -> None:
        """Add a textual inversion to the text encoders. Raises BadInversion for one that does not fit."""
        raise BadInversion(f"{inversion.file}: the family {self.info.family} takes no embeddings")

    @abstractmethod
    def record_texts(self, compiler: Callable[..., Any]) -> None:
        """Compile the prompt encoders with `compiler`, which `CompiledDenoiser` receives too."""

    def image_tokens(self, width_px: int, height_px: int) -> int:
        """Return the number of a transformer's tokens for an image, which may shift its schedule; 0 for a UNet."""
        return 0

    def conditioning(
        self, prompt: PromptStates, width_px: int, height_px: int, guidance_scale: float = 1.0
    ) -> Conditioning:
        """Return one row with all conditioning of the family."""
        return prompt.conditioning

    def project(self, conditioning: Conditioning, adapters: PerSampleAdapters | None = None) -> Conditioning:
        """Return the conditioning with `projected` if the family uses it; for the rows of one image and their
        adapters."""
        return conditioning

    @abstractmethod
    def forget_time_terms(self) -> None:
        """Drop the time terms computed with weights that have changed."""

    def time_terms(self, timestep: float, row_count: int) -> Tensor | None:
        """Return `DenoiserInput.time_terms` of an image's rows; None if they depend on more than the timestep."""
        return None

    def guided(self, unconditional: Tensor, conditional: Tensor, scale: float) -> Tensor:
        """Return the guided prediction of one image (Ho and Salimans 2022), in diffusers' order of operations."""
        return unconditional + scale * (conditional - unconditional)

    @abstractmethod
    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the network's prediction, shaped as the latents. `as_alone` is honoured if possible (see
        `row_kernels`)."""

    def predict_and_keep(self, inputs: DenoiserInput) -> tuple[Tensor, Tensor | None]:
        """Return the prediction with the bits of `predict`, and the deep features of its rows, which later steps of the
        same images may reuse; None if the network has none."""
        return self.predict(inputs), None

    def predict_from(self, inputs: DenoiserInput, features: Tensor) -> Tensor:
        """Return a prediction that approximates `predict`: its outer layers run, with deep features that
        `predict_and_keep` returned for the same rows at an earlier step. Only for models that return some."""
        raise NotImplementedError

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the encoding computed before any residual is needed: a UNet's encoder and mid block, a transformer's
        first block (Katz, section 5). Empty if the network has no halves."""
        return DenoiserEncoding()

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        """Return the encoding of the same rows after `blocks_done` of a transformer's blocks, fewer than all; the
        residuals are in `inputs.residuals`. A UNet's encoding is returned unchanged: it takes residuals at one
        point."""
        return encoding

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction from an encoding of the same rows and `inputs.residuals`, with the bits of
        `predict`."""
        return self.predict(inputs)

    def example_residuals(self, encoding: DenoiserEncoding) -> ControlResiduals | None:
        """Return zeros shaped as every ControlNet's residuals for rows of this encoding; None if the shapes depend on
        the ControlNet."""
        return None

    @abstractmethod
    def encode_image(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Return the clean latent of pixels (1, 3, height, width) in -1..1; a stochastic encoder draws from
        `generator`."""

    def condition(self, pixels: Tensor, row_count: int, generator: torch.Generator, *, unshifted: bool) -> Tensor:
        """Return the input of the family's ControlNets for pixels (1, 3, height, width) in 0..1: the pixels for a UNet;
        for a transformer a latent for each row of the image, drawn from `generator`, without the autoencoder's shift if
        `unshifted`."""
        return pixels.to(self.device, self.dtype)

    @abstractmethod
    def decode_latent(self, latent: Tensor) -> Tensor:
        """Return the pixels (1, 3, height, width), about -1..1, of a clean latent."""

    def tile_decoder(self, side_px: int) -> None:
        """Decode images with a longer side in tiles of about that side, which takes less memory; 0: whole. Raises
        ValueError for a side that is too short."""
        raise NotImplementedError
