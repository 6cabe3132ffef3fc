"""Define a loaded ControlNet's interface: its description, the embedding of its condition, and residuals per step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from pentimento.diffusion.families.model import NO_CONTROL, Conditioning, ControlResiduals, DenoiserInput
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ControlKind

# diffusers sets no limit; above this, half precision overflows.
MAX_SCALE = 100.0


@dataclass(frozen=True)
class ControlSetting:
    """Scale the residuals by `scale`, in steps that lie completely between two fractions of the schedule, 0..1."""

    scale: float = 1.0
    start_fraction: float = 0.0
    end_fraction: float = 1.0

    def check(self, field: str) -> None:
        """Raise InvalidArgument naming the part of `field` that is out of bounds."""
        if not (math.isfinite(self.scale) and abs(self.scale) <= MAX_SCALE):
            wanted = f"must be a number between -{MAX_SCALE:g} and {MAX_SCALE:g}, got {self.scale}"
            raise InvalidArgument.of(f"{field}.conditioning_scale", wanted)
        if not 0.0 <= self.start_fraction < 1.0:
            raise InvalidArgument.of(f"{field}.start_fraction", f"must be in 0..1, below 1, got {self.start_fraction}")
        if not self.start_fraction < self.end_fraction <= 1.0:
            wanted = f"must be above start_fraction and at most 1, got {self.end_fraction}"
            raise InvalidArgument.of(f"{field}.end_fraction", wanted)

    def acts_at(self, step_index: int, step_count: int) -> bool:
        """Return whether it acts in a step of a schedule of `step_count` steps, by diffusers' rule. Steps count from
        the schedule's beginning, even if the cache lets an image start later; see `over_steps_from`."""
        return step_index / step_count >= self.start_fraction and (step_index + 1) / step_count <= self.end_fraction

    def over_steps_from(self, first_step: int, step_count: int) -> "ControlSetting":
        """Return the setting of a request that starts from its own image at `first_step`: the fractions apply to the
        remaining steps, as in diffusers' pipelines from an image."""
        left = step_count - first_step
        acting = [first_step + step for step in range(left) if self.acts_at(step, left)]
        # If no step acts: the second half of the last step, which contains no whole step either.
        first, end = (acting[0], acting[-1] + 1) if acting else (step_count - 0.5, step_count)
        return replace(self, start_fraction=first / step_count, end_fraction=end / step_count)

    def acting_steps(self, first_step: int, step_count: int) -> range:
        """Return the steps from `first_step` on at which it acts."""
        acting = [step for step in range(first_step, step_count) if self.acts_at(step, step_count)]
        return range(acting[0], acting[-1] + 1) if acting else range(0)


def place_of_kind(kind: ControlKind | None, kind_count: int) -> int:
    """Return the place of a kind among those of a ControlNet-Union; 0 for other ControlNets, without a kind. Raises
    InvalidArgument for a kind that the network does not have, and for a missing one."""
    taken = list(ControlKind)[:kind_count]
    if kind in taken:
        return taken.index(kind)
    if kind is None and not kind_count:
        return 0
    names = ", ".join(one.value for one in taken)
    raise InvalidArgument.of("controlnet.kind", f"must be one of {names}" if taken else "must be empty")


def scaled(residuals: ControlResiduals, setting: ControlSetting) -> ControlResiduals:
    """Return residuals times the setting's scale."""
    mid = residuals.mid_block_residual
    return ControlResiduals(
        tuple(part * setting.scale for part in residuals.down_block_residuals),
        None if mid is None else mid * setting.scale,
        tuple(part * setting.scale for part in residuals.block_residuals),
    )


def summed(parts: Sequence[ControlResiduals]) -> ControlResiduals:
    """Return the sum of several ControlNets' residuals, first to last, over the blocks that all have computed so far.
    Parts without residuals at this step are skipped; NO_CONTROL if all are. Raises ValueError if the parts are for
    different blocks."""
    acting = [part for part in parts if part.tensors]
    if not acting:
        return NO_CONTROL
    total = acting[0]
    for part in acting[1:]:
        total = _added(total, part)
    return total


def _added(first: ControlResiduals, second: ControlResiduals) -> ControlResiduals:
    mids = (first.mid_block_residual, second.mid_block_residual)
    if (mids[0] is None) != (mids[1] is None):
        raise ValueError("residuals with and without a mid block's")
    _check_same(len(first.down_block_residuals), len(second.down_block_residuals))
    _check_same(first.block_count, second.block_count)
    return ControlResiduals(
        _sums(first.down_block_residuals, second.down_block_residuals),
        None if mids[0] is None or mids[1] is None else mids[0] + mids[1],
        _sums(first.block_residuals, second.block_residuals),
        max(first.awaited_count, second.awaited_count),
    )


def _check_same(first: int, second: int) -> None:
    if first != second:
        raise ValueError(f"residuals of {first} and of {second} blocks")


def _sums(first: Sequence[Tensor], second: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(one + other for one, other in zip(first, second, strict=False))


@dataclass(frozen=True)
class ControlNetInfo:
    """Describe a ControlNet and its inputs. `family` is the family of the models that it controls; `base_digest` is the
    digest of the model that it was trained for, empty if its registry names none. Its condition has
    `condition_channels`: of pixels, or with `takes_latents` of a latent, which is encoded without the autoencoder's
    shift if `unshifted`. `kind_count` is the number of kinds of conditions of a ControlNet-Union, 0 for others."""

    family: str
    digest: str
    base_digest: str
    latent_channels: int
    condition_channels: int
    takes_latents: bool
    unshifted: bool
    kind_count: int = 0


@dataclass(frozen=True)
class ControlStep:
    """Hold one image at one step: the denoiser's inputs for all rows of the image, its embedded condition (rows, or 1
    for all), the ControlNet's setting, and the place of the condition's kind among those of a ControlNet-Union."""

    inputs: DenoiserInput
    embedded: Tensor
    setting: ControlSetting
    kind: int = 0


# Receives each image's residuals that a pass has computed so far.
ResidualsSoFar = Callable[[list[ControlResiduals]], None]


def unheard(so_far: list[ControlResiduals]) -> None:
    """Ignore partial residuals: the caller waits for the complete ones."""


class ControlNet(Protocol):
    """Define a loaded ControlNet. Call it from one thread at a time."""

    @property
    def info(self) -> ControlNetInfo:
        """Return the description of the ControlNet."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the network's configuration."""

    @property
    def device(self) -> torch.device:
        """Return the device of the network."""

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the weights."""

    def embed(self, condition: Tensor, row_count: int = 1) -> Tensor:
        """Return the network's embedding of a condition (1 or rows, channels, height, width). It is the same at every
        step, and computed once per stream. With `row_count` at the image's number of rows it has diffusers' bits:
        convolutions choose their kernels by it. Raises InvalidArgument naming `condition` and its limit."""

    def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
        """Return the residuals of each image's rows, scaled, from one forward pass over all rows. A transformer's pass
        calls `tell` as it proceeds, each time with all residuals so far. Raises InvalidArgument naming the part of a
        step that does not fit the network."""


@dataclass(frozen=True)
class ControlRows:
    """Hold the rows of a forward pass over several images; `kinds` (rows,) are places of `ControlStep.kind`, and
    `images` (rows,) the places of the rows' images in the pass."""

    latents: Tensor
    timesteps: Tensor
    conditioning: Conditioning
    embedded: Tensor
    kinds: Tensor
    images: Tensor


def rows_of(steps: Sequence[ControlStep]) -> ControlRows:
    """Return the rows of the ControlNet's pass, one image after the other."""
    parts = [_rows_of(step, place) for place, step in enumerate(steps)]
    names = ("latents", "timesteps", "embedded", "kinds", "images")
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return ControlRows(conditioning=Conditioning.concatenate([part.conditioning for part in parts]), **joined)


def _rows_of(step: ControlStep, place: int) -> ControlRows:
    inputs, count = step.inputs, len(step.inputs.latents)
    texts = inputs.conditioning
    return ControlRows(
        inputs.latents,
        inputs.timesteps.expand(count),
        Conditioning(texts.states, texts.pooled, texts.sizes),
        step.embedded.expand(count, *step.embedded.shape[1:]),
        torch.full((count,), step.kind, device=inputs.latents.device),
        torch.full((count,), place, device=inputs.latents.device),
    )


def by_picture(residuals: ControlResiduals, steps: Sequence[ControlStep]) -> list[ControlResiduals]:
    """Return the residuals of `rows_of(steps)` by image, scaled."""
    counts = [len(step.inputs.latents) for step in steps]
    columns = [tensor.split(counts) for tensor in residuals.tensors]
    return [
        scaled(_like(residuals, [column[place] for column in columns]), step.setting)
        for place, step in enumerate(steps)
    ]


def _like(residuals: ControlResiduals, tensors: Sequence[Tensor]) -> ControlResiduals:
    down = len(residuals.down_block_residuals)
    mid = residuals.mid_block_residual is not None
    return ControlResiduals(tuple(tensors[:down]), tensors[down] if mid else None, tuple(tensors[down + mid :]))


def condition_rows(condition: Tensor, channels: int, row_count: int) -> Tensor:
    """Return a condition by rows. Raises InvalidArgument unless it is (rows, `channels`, height, width) of finite
    numbers."""
    shape = list(condition.shape)
    if len(shape) != 4 or shape[1] != channels or 0 in shape:
        raise InvalidArgument.of("condition", f"must be of shape (rows, {channels}, height, width), got {shape}")
    if not torch.isfinite(condition).all():
        raise InvalidArgument.of("condition", "must hold finite numbers")
    return condition.repeat(row_count, 1, 1, 1) if shape[0] == 1 else condition


def check_rows(rows: ControlRows, latent_channels: int, text_width: int | None, pooled_width: int | None) -> None:
    """Raise InvalidArgument naming the input with another number of values than the network takes."""
    _check_size("latents", list(rows.latents.shape), 1, latent_channels)
    if text_width is not None:
        _check_size("text_states", list(rows.conditioning.states.shape), 2, text_width)
    if pooled_width is not None:
        pooled = rows.conditioning.pooled
        _check_size("pooled_states", [] if pooled is None else list(pooled.shape), 1, pooled_width)


def _check_size(field: str, shape: list[int], place: int, wanted: int) -> None:
    if len(shape) <= place or shape[place] != wanted:
        raise InvalidArgument.of(field, f"must have {wanted} values in dimension {place}, got shape {shape}")
