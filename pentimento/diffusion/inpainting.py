"""Inpainting by blending latents: a model that knows nothing of masks paints the whole picture, and after each step
what stays is put back, noised to where the sampler is.

A network that sees masks is told the mask and what stays instead, in further channels beside the latent, and nothing is
put back.

As diffusers' inpainting pipelines of Stable Diffusion, SDXL and SD3 do it, in their order of operations.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pentimento.diffusion.images import kept_after_sampling
from pentimento.diffusion.schedulers import SamplerState, Schedule


@dataclass(frozen=True)
class KnownRegion:
    """What stays of a masked picture: `mask` (1, 1, height, width) of the latent, 1 where it is painted, 0 where it
    stays; the image's `clean` latent and the `noise` (both (1, channels, height, width)) that it is noised with."""

    mask: Tensor
    clean: Tensor
    noise: Tensor

    def restore(self, schedule: Schedule, state: SamplerState) -> SamplerState:
        """Return the state after a step with what stays put back: at the level before the next step, and clean after
        the last."""
        is_last = state.step_index >= schedule.step_count
        known = self.clean if is_last else schedule.noised_latent(self.clean, self.noise, state.step_index)
        return replace(state, latent=self._blend(known, state.latent))

    def restore_clean(self, predicted_clean: Tensor) -> Tensor:
        """Return a predicted clean latent with what stays in its place."""
        return self._blend(self.clean, predicted_clean)

    def _blend(self, known: Tensor, painted: Tensor) -> Tensor:
        return (1 - self.mask) * known + self.mask * painted


def cells_of(mask: Tensor, latent_shape: tuple[int, ...]) -> Tensor:
    """Return a mask of pixels (1, 1, height, width) as one of a latent's cells: each is what the pixel in its upper
    left corner is, as in diffusers. Where that would lose the whole mask, a cell is 1 that covers any pixel of it."""
    return kept_after_sampling(mask, interpolate(mask, size=latent_shape[-2:]))


def kept_pixels(pixels: Tensor, mask: Tensor) -> Tensor:
    """Return pixels (1, 3, height, width) in -1..1 with grey (0) where the mask (1, 1, height, width) is painted."""
    return pixels * (mask < 0.5).to(pixels.dtype)


def masked_channels(kept_latent: Tensor, mask: Tensor) -> Tensor:
    """Return what a network that sees masks takes beside a latent: the mask of the latent (1, 1, height, width), and
    the latent of what stays (1, channels, height, width)."""
    return torch.cat([mask, kept_latent], dim=1)
