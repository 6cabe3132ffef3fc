"""Serve SDXL (Podell et al. 2023): two CLIP text encoders with concatenated states, and a UNet that also takes the
second one's pooled text and the image's size."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint, Checkpoint
from pentimento.diffusion.families.autoencoder import Autoencoder, LatentScale
from pentimento.diffusion.families.model import Conditioning, PromptStates
from pentimento.diffusion.families.unet import UNetFamily
from pentimento.diffusion.families.weighted_texts import emphasised
from pentimento.domain.prompt_syntax import WeightedPrompt

# Original height and width, top and left of the crop, target height and width.
_SIZE_COUNT = 6


class StableDiffusionXl(UNetFamily):
    """Adapt diffusers' modules of this family to the engine."""

    name = "stable_diffusion_xl"
    encoders = ("text_encoder", "text_encoder_2")
    inversion_keys = ("clip_l", "clip_g")

    def _take_settings(self, checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
        if (kind := config.get("addition_embed_type")) != "text_time":
            path = checkpoint.component_directory("unet") / "config.json"
            raise BadCheckpoint(f"{path}: addition_embed_type must be 'text_time', got {kind!r}")
        if checkpoint.settings.get("requires_aesthetics_score", False):
            raise BadCheckpoint(f"{checkpoint.directory}: requires_aesthetics_score (a refiner) is not supported")
        self._zeros_for_empty = bool(checkpoint.settings.get("force_zeros_for_empty_prompt", True))

    def encode_prompt(self, prompt: str, *, negative: bool = False, clip_skip: int = 0) -> PromptStates:
        """Return the prompt's states. diffusers distinguishes an absent negative prompt from an empty one; here an
        empty one counts as absent."""
        first, second = (text.penultimate_states(prompt, text.token_limit, clip_skip) for text in self._texts)
        absent = negative and not prompt
        conditioning = self._conditioning_of(first.states, second.states, second.pooled, absent=absent)
        return PromptStates(conditioning, first.truncated and second.truncated)

    def encode_weighted(
        self, prompt: WeightedPrompt, chunk_count: int, *, negative: bool = False, clip_skip: int = 0
    ) -> PromptStates:
        first, second = (text.weighted(prompt, chunk_count, clip_skip, penultimate=True) for text in self._texts)
        absent = negative and not prompt.plain
        states = (emphasised([first]), emphasised([second]))
        return PromptStates(self._conditioning_of(*states, second.pooled, absent=absent), truncated=False)

    def _conditioning_of(self, first: Tensor, second: Tensor, pooled: Tensor | None, *, absent: bool) -> Conditioning:
        """Return both encoders' states in one; zeros for an absent negative prompt if the checkpoint wants them."""
        assert pooled is not None
        states, pooled = torch.cat([first, second], dim=-1).to(self.dtype), pooled.to(self.dtype)
        if absent and self._zeros_for_empty:
            return Conditioning(torch.zeros_like(states), torch.zeros_like(pooled))
        return Conditioning(states, pooled)

    def conditioning(
        self, prompt: PromptStates, width_px: int, height_px: int, guidance_scale: float = 1.0
    ) -> Conditioning:
        sizes = torch.tensor([[height_px, width_px, 0, 0, height_px, width_px]], dtype=self.dtype, device=self.device)
        return Conditioning(prompt.conditioning.states, prompt.conditioning.pooled, sizes)

    def time_terms(self, timestep: float, row_count: int) -> Tensor | None:
        """Return None: the terms depend on the pooled text and the sizes, too."""
        return None

    def _with_scale(self, vae: Any) -> Autoencoder:
        if vae.config.force_upcast and self.dtype is not torch.float32:
            vae.float()  # its activations leave half precision's range
        scale = LatentScale.of(vae.config).by_channel(vae.config, self.device, self.dtype)
        return Autoencoder(vae, scale, self.device, self.dtype)

    def _check_widths(self, checkpoint: Checkpoint, parts: Mapping[str, Any]) -> None:
        """Raise BadCheckpoint for a UNet with another number of sizes (a refiner) or another width of pooled text."""
        unet, pooled = parts["unet"], parts["text_encoder_2"].config.projection_dim
        given = unet.config.addition_time_embed_dim * _SIZE_COUNT + pooled
        taken = unet.add_embedding.linear_1.in_features
        if given != taken:
            message = f"the UNet takes {taken} values of pooled text and sizes, there are {given}"
            raise BadCheckpoint(f"{checkpoint.directory}: {message}")
