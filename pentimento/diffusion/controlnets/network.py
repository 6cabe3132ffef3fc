"""Define a loaded ControlNet's interface: its description, the embedding of its condition, and residuals per step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from pentimento.diffusion.controlnets.setting import ControlSetting
from pentimento.diffusion.controlnets.summing import scaled
from pentimento.diffusion.families.model import Conditioning, ControlResiduals, DenoiserInput
from pentimento.domain.errors import InvalidArgument


@dataclass(frozen=True)
class ControlNetInfo:
    """Describe a ControlNet and its inputs. `family` is the family of the models that it controls; `base_digest` is the
    digest of the model that it was trained for, empty if its registry names none. Its condition has
    `condition_channels`: of pixels, or with `takes_latents` of a latent, which is encoded without the autoencoder's
    shift if `unshifted`."""

    family: str
    digest: str
    base_digest: str
    latent_channels: int
    condition_channels: int
    takes_latents: bool
    unshifted: bool


@dataclass(frozen=True)
class ControlStep:
    """Hold one image at one step: the denoiser's inputs for all rows of the image, its embedded condition (rows, or 1
    for all), and the ControlNet's setting."""

    inputs: DenoiserInput
    embedded: Tensor
    setting: ControlSetting


# Receives each image's residuals that a pass has computed so far.
ResidualsSoFar = Callable[[list[ControlResiduals]], None]


def unheard(so_far: list[ControlResiduals]) -> None:
    """Ignore partial residuals: the caller waits for the complete ones."""


class ControlNet(Protocol):
    """Define a loaded ControlNet. Call it from one thread at a time."""

    @property
    def info(self) -> ControlNetInfo:
        """Return the description of the ControlNet."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """Return the network's configuration."""
        ...

    @property
    def device(self) -> torch.device:
        """Return the device of the network."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the weights."""
        ...

    def embed(self, condition: Tensor, row_count: int = 1) -> Tensor:
        """Return the network's embedding of a condition (1 or rows, channels, height, width). It is the same at every
        step, and computed once per stream. With `row_count` at the image's number of rows it has diffusers' bits:
        convolutions choose their kernels by it. Raises InvalidArgument naming `condition` and its limit."""
        ...

    def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
        """Return the residuals of each image's rows, scaled, from one forward pass over all rows. A transformer's pass
        calls `tell` as it proceeds, each time with all residuals so far. Raises InvalidArgument naming the part of a
        step that does not fit the network."""
        ...


@dataclass(frozen=True)
class ControlRows:
    """Hold the rows of a forward pass over several images."""

    latents: Tensor
    timesteps: Tensor
    conditioning: Conditioning
    embedded: Tensor


def rows_of(steps: Sequence[ControlStep]) -> ControlRows:
    """Return the rows of the ControlNet's pass, one image after the other."""
    parts = [_rows_of(step) for step in steps]
    return ControlRows(
        torch.cat([part.latents for part in parts]),
        torch.cat([part.timesteps for part in parts]),
        Conditioning.concatenate([part.conditioning for part in parts]),
        torch.cat([part.embedded for part in parts]),
    )


def _rows_of(step: ControlStep) -> ControlRows:
    inputs, count = step.inputs, len(step.inputs.latents)
    texts = inputs.conditioning
    return ControlRows(
        inputs.latents,
        inputs.timesteps.expand(count),
        Conditioning(texts.states, texts.pooled, texts.sizes),
        step.embedded.expand(count, *step.embedded.shape[1:]),
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
