"""What a loaded ControlNet offers: what it is, the embedding of its condition, and residuals by step."""

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
    """What a ControlNet is and takes. `family` is that of the models it controls; `base_digest` that of the model it
    was trained for, empty where its registry names none. Its condition has `condition_channels`: of pixels, or where
    `takes_latents` of a latent, which is encoded without the autoencoder's shift where `unshifted`."""

    family: str
    digest: str
    base_digest: str
    latent_channels: int
    condition_channels: int
    takes_latents: bool
    unshifted: bool


@dataclass(frozen=True)
class ControlStep:
    """One picture at one step: what its denoiser sees there, all rows of the picture, its embedded condition
    (rows, or 1 for all), and how the ControlNet acts."""

    inputs: DenoiserInput
    embedded: Tensor
    setting: ControlSetting


# Takes the residuals of each picture of a pass, as far as they are there.
ResidualsSoFar = Callable[[list[ControlResiduals]], None]


def unheard(so_far: list[ControlResiduals]) -> None:
    """Ignore what is there: all of it is waited for."""


class ControlNet(Protocol):
    """A loaded ControlNet. One thread at a time calls it."""

    @property
    def info(self) -> ControlNetInfo:
        """What the ControlNet is and takes."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The network's configuration."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        ...

    def embed(self, condition: Tensor, row_count: int = 1) -> Tensor:
        """Return what the network makes of a condition (1 or rows, channels, height, width), which does not change from
        step to step: computed once a stream. With the `row_count` of the picture's rows it has diffusers' bits:
        convolutions choose their kernels by it. Raises InvalidArgument naming `condition` and its limit."""
        ...

    def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
        """Return the residuals of each picture's rows, scaled, from one forward pass over all of them. A transformer's
        are told of as the pass goes on, each time all that are there. Raises InvalidArgument naming the part of a step
        that does not fit the network."""
        ...


@dataclass(frozen=True)
class ControlRows:
    """The rows of a forward pass over several pictures."""

    latents: Tensor
    timesteps: Tensor
    conditioning: Conditioning
    embedded: Tensor


def rows_of(steps: Sequence[ControlStep]) -> ControlRows:
    """Return the rows that the ControlNet is asked for, one image's after the other."""
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
    """Return a condition by rows. Raises InvalidArgument for one that is no (rows, `channels`, height, width) of finite
    numbers."""
    shape = list(condition.shape)
    if len(shape) != 4 or shape[1] != channels or 0 in shape:
        raise InvalidArgument.of("condition", f"must be of shape (rows, {channels}, height, width), got {shape}")
    if not torch.isfinite(condition).all():
        raise InvalidArgument.of("condition", "must hold finite numbers")
    return condition.repeat(row_count, 1, 1, 1) if shape[0] == 1 else condition


def check_rows(rows: ControlRows, latent_channels: int, text_width: int | None, pooled_width: int | None) -> None:
    """Raise InvalidArgument naming what of a step has another shape than the network takes."""
    _check_size("latents", list(rows.latents.shape), 1, latent_channels)
    if text_width is not None:
        _check_size("text_states", list(rows.conditioning.states.shape), 2, text_width)
    if pooled_width is not None:
        pooled = rows.conditioning.pooled
        _check_size("pooled_states", [] if pooled is None else list(pooled.shape), 1, pooled_width)


def _check_size(field: str, shape: list[int], place: int, wanted: int) -> None:
    if len(shape) <= place or shape[place] != wanted:
        raise InvalidArgument.of(field, f"must have {wanted} values in dimension {place}, got shape {shape}")
