"""ControlNets of SD3's transformer: a residual for each of their own blocks. diffusers' own forward pass, told a
condition that is embedded already."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pentimento.diffusion.controlnets.network import (
    ControlNetInfo,
    ControlStep,
    by_picture,
    check_rows,
    condition_rows,
    rows_of,
)
from pentimento.diffusion.families.lean_attention import skip_signature_checks
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.domain.errors import InvalidArgument


class TransformerControlNet:
    """diffusers' SD3ControlNetModel."""

    def __init__(self, network: Any, info: ControlNetInfo, device: torch.device, dtype: torch.dtype) -> None:
        """Change the network: the layer of its condition stands beside it, and attention skips signature checks."""
        self.info, self.device, self.dtype = info, device, dtype
        self.config: Mapping[str, Any] = dict(network.config)
        self._embedder = network.pos_embed_input
        network.pos_embed_input = nn.Identity()
        skip_signature_checks(network)
        self._network = network

    @torch.inference_mode()
    def embed(self, condition: Tensor, row_count: int = 1) -> Tensor:
        """Return the patches (rows, patches, width) of a latent (1 or rows, channels, height, width)."""
        rows = condition_rows(condition, self.info.condition_channels, row_count)
        embedded: Tensor = self._embedder(rows.to(self.device, self.dtype))
        return embedded

    @torch.inference_mode()
    def residuals(self, steps: Sequence[ControlStep]) -> list[ControlResiduals]:
        """Return the residuals of each picture's rows, scaled."""
        rows = rows_of(steps)
        config = self.config
        check_rows(rows, self.info.latent_channels, config["joint_attention_dim"], config["pooled_projection_dim"])
        patches = rows.latents.shape[2] * rows.latents.shape[3] // config["patch_size"] ** 2
        if rows.embedded.shape[1] != patches:
            raise InvalidArgument.of("condition", f"must make {patches} patches, got {rows.embedded.shape[1]}")
        pooled = rows.conditioning.pooled
        assert pooled is not None  # check_rows
        blocks = self._network(
            hidden_states=rows.latents,
            controlnet_cond=rows.embedded,
            encoder_hidden_states=rows.conditioning.states,
            pooled_projections=torch.zeros_like(pooled) if config["force_zeros_for_pooled_projection"] else pooled,
            timestep=rows.timesteps,
            return_dict=False,
        )[0]
        return by_picture(ControlResiduals(block_residuals=tuple(blocks)), steps)
