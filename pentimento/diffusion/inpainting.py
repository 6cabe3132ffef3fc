"""Inpaint by blending latents: a model without mask input generates the whole image, and after each step the known
region is restored, noised to the sampler's level.

A network that takes masks receives the mask and the known region in further channels after the latent; nothing is
restored.

The order of operations is that of diffusers' inpainting pipelines of Stable Diffusion, SDXL and SD3.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pentimento.diffusion.images import kept_after_sampling
from pentimento.diffusion.schedulers import SamplerState, Schedule


@dataclass(frozen=True)
class KnownRegion:
    """Hold the known region of a masked image: `mask` (1, 1, height, width) of the latent, 1 for generated cells, 0 for
    known ones; the image's `clean` latent and the `noise` added to it (both (1, channels, height, width))."""

    mask: Tensor
    clean: Tensor
    noise: Tensor

    def restore(self, schedule: Schedule, state: SamplerState) -> SamplerState:
        """Return the state after a step with the known region restored: at the level before the next step, and clean
        after the last."""
        is_last = state.step_index >= schedule.step_count
        known = self.clean if is_last else schedule.noised_latent(self.clean, self.noise, state.step_index)
        return replace(state, latent=self._blend(known, state.latent))

    def restore_clean(self, predicted_clean: Tensor) -> Tensor:
        """Return a predicted clean latent with the known region restored."""
        return self._blend(self.clean, predicted_clean)

    def _blend(self, known: Tensor, generated: Tensor) -> Tensor:
        return (1 - self.mask) * known + self.mask * generated


def cells_of(mask: Tensor, latent_shape: tuple[int, ...]) -> Tensor:
    """Return a mask of pixels (1, 1, height, width) as a mask of a latent's cells: each has the value of the pixel in
    its upper left corner, as in diffusers. If that would lose the whole mask, every cell that covers a pixel of it is
    1."""
    return kept_after_sampling(mask, interpolate(mask, size=latent_shape[-2:]))


def kept_pixels(pixels: Tensor, mask: Tensor) -> Tensor:
    """Return pixels (1, 3, height, width) in -1..1 with grey (0) where the mask (1, 1, height, width) is set."""
    return pixels * (mask < 0.5).to(pixels.dtype)


def masked_channels(kept_latent: Tensor, mask: Tensor) -> Tensor:
    """Return the additional channels of a network that takes masks: the mask of the latent (1, 1, height, width), then
    the latent of the known region (1, channels, height, width)."""
    return torch.cat([mask, kept_latent], dim=1)
