"""ControlNets of UNets (Zhang et al. 2023): Stable Diffusion and SDXL. diffusers' own forward pass, told a condition
that is embedded already."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pentimento.diffusion.controlnets.network import (
    ControlNetInfo,
    ControlRows,
    ControlStep,
    ResidualsSoFar,
    by_picture,
    check_rows,
    condition_rows,
    rows_of,
    unheard,
)
from pentimento.diffusion.families.lean_attention import skip_signature_checks
from pentimento.diffusion.families.model import ControlResiduals
from pentimento.domain.errors import InvalidArgument


class UNetControlNet:
    """diffusers' ControlNetModel."""

    def __init__(self, network: Any, info: ControlNetInfo, device: torch.device, dtype: torch.dtype) -> None:
        """Change the network: the layers of its condition stand beside it, and attention skips signature checks."""
        self.info, self.device, self.dtype = info, device, dtype
        self.config: Mapping[str, Any] = dict(network.config)
        self._flips = self.config["controlnet_conditioning_channel_order"] == "bgr"
        self._embedder = network.controlnet_cond_embedding
        network.controlnet_cond_embedding = nn.Identity()
        network.register_to_config(controlnet_conditioning_channel_order="rgb")
        skip_signature_checks(network)
        self._network = network
        attends = any(type(module).__name__ == "Transformer2DModel" for module in network.modules())
        self._text_width = self.config["cross_attention_dim"] if attends else None
        self._added_width = _pooled_width(self.config) if info.family == "stable_diffusion_xl" else None

    @torch.inference_mode()
    def embed(self, condition: Tensor, row_count: int = 1) -> Tensor:
        """Return what the network makes of pixels (1 or rows, channels, height, width) in 0..1."""
        rows = condition_rows(condition, self.info.condition_channels, row_count)
        pixels = rows.to(self.device, self.dtype)
        embedded: Tensor = self._embedder(torch.flip(pixels, dims=[1]) if self._flips else pixels)
        return embedded

    @torch.inference_mode()
    def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
        """Return the residuals of each picture's rows, scaled."""
        rows = rows_of(steps)
        check_rows(rows, self.info.latent_channels, self._text_width, self._added_width)
        if rows.embedded.shape[2:] != rows.latents.shape[2:]:
            wanted = f"must be of the picture's size: {list(rows.latents.shape[2:])} embedded"
            raise InvalidArgument.of("condition", f"{wanted}, got {list(rows.embedded.shape[2:])}")
        down, mid = self._network(
            rows.latents,
            rows.timesteps,
            encoder_hidden_states=rows.conditioning.states,
            controlnet_cond=rows.embedded,
            added_cond_kwargs=_added(rows),
            return_dict=False,
        )
        return by_picture(ControlResiduals(tuple(down), mid), steps)


def _added(rows: ControlRows) -> dict[str, Tensor | None]:
    return {"text_embeds": rows.conditioning.pooled, "time_ids": rows.conditioning.sizes}


def _pooled_width(config: Mapping[str, Any]) -> int:
    """What SDXL's added embedding takes besides six sizes."""
    return int(config["projection_class_embeddings_input_dim"]) - 6 * int(config["addition_time_embed_dim"])
