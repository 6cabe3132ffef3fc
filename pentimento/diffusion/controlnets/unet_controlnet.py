"""Run ControlNets of UNets (Zhang et al. 2023): Stable Diffusion and SDXL.

The written-out passes run if they cover the network, else diffusers' forward pass; both take an embedded condition.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.controlnets.network import (
    ControlNetInfo,
    ControlStep,
    ResidualsSoFar,
    by_picture,
    check_rows,
    condition_rows,
    rows_of,
    unheard,
)
from pentimento.diffusion.families.lean_attention import skip_signature_checks
from pentimento.diffusion.families.model import Conditioning, ControlResiduals
from pentimento.diffusion.families.unet_passes import (
    AttendedTexts,
    EncoderPasses,
    UNetEncoding,
    added_conditions,
    covers,
)
from pentimento.domain.errors import InvalidArgument


class UNetControlNet:
    """Run diffusers' ControlNetModel, and ControlNetUnionModel."""

    def __init__(
        self,
        network: Any,
        info: ControlNetInfo,
        device: torch.device,
        dtype: torch.dtype,
        compiler: Callable[..., Any] = lambda function: function,
    ) -> None:
        """Change the network: its condition's layers move out of it, and attention skips signature checks. `compiler`
        takes the forward pass, a function of tensors, and returns its replacement, with results that are valid until
        its next call."""
        self.info, self.device, self.dtype = info, device, dtype
        self.config: Mapping[str, Any] = dict(network.config)
        self._flips = self.config["controlnet_conditioning_channel_order"] == "bgr"
        self._embedder = network.controlnet_cond_embedding
        network.controlnet_cond_embedding = nn.Identity()
        network.register_to_config(controlnet_conditioning_channel_order="rgb")
        skip_signature_checks(network)
        attends = any(type(module).__name__ == "Transformer2DModel" for module in network.modules())
        self._text_width = self.config["cross_attention_dim"] if attends else None
        self._added_width = _pooled_width(self.config) if info.family == "stable_diffusion_xl" else None
        self._forward = compiler(_UnionPass(network) if info.kind_count else _ForwardPass(network))

    @torch.inference_mode()
    def embed(self, condition: Tensor, row_count: int = 1) -> Tensor:
        """Return the network's embedding of pixels (1 or rows, channels, height, width) in 0..1."""
        rows = condition_rows(condition, self.info.condition_channels, row_count)
        pixels = rows.to(self.device, self.dtype)
        embedded: Tensor = self._embedder(torch.flip(pixels, dims=[1]) if self._flips else pixels)
        return embedded

    @torch.inference_mode()
    def residuals(self, steps: Sequence[ControlStep], tell: ResidualsSoFar = unheard) -> list[ControlResiduals]:
        """Return the residuals of each image's rows, scaled."""
        rows = rows_of(steps)
        check_rows(rows, self.info.latent_channels, self._text_width, self._added_width)
        if rows.embedded.shape[2:] != rows.latents.shape[2:]:
            wanted = f"must be of the image's size: {list(rows.latents.shape[2:])} embedded"
            raise InvalidArgument.of("condition", f"{wanted}, got {list(rows.embedded.shape[2:])}")
        own = (rows.kinds, rows.images) if self.info.kind_count else ()
        *down, mid = self._forward(rows.latents, rows.timesteps, rows.embedded, *own, *rows.conditioning.parts)
        return by_picture(ControlResiduals(tuple(down), mid), steps)


class _ForwardPass:
    """Run the network over embedded conditions. It is in no reference cycle: a dropped network is freed immediately."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._passes = EncoderPasses(network) if covers(network) else None
        self._takes_added = network.config.addition_embed_type is not None

    def __call__(
        self, latents: Tensor, timesteps: Tensor, embedded: Tensor, states: Tensor, *texts: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Return the residuals of the down blocks, then of the mid block."""
        network, added = self._network, added_conditions(Conditioning(states, *texts)) if self._takes_added else None
        if self._passes is None:
            given = {"controlnet_cond": embedded, "added_cond_kwargs": added, "return_dict": False}
            down, mid = network(latents, timesteps, states, **given)
            return (*down, mid)
        terms = self._passes.time_terms(timesteps, latents.dtype, added)
        attended = AttendedTexts(self._passes.project_text(states))
        return _residuals(network, self._passes.encode(latents, attended, terms, embedded))


class _UnionPass:
    """Run a ControlNetUnionModel over embedded conditions, each row with one of its kind."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self._passes = EncoderPasses(network)

    def __call__(
        self,
        latents: Tensor,
        timesteps: Tensor,
        embedded: Tensor,
        kinds: Tensor,
        images: Tensor,
        states: Tensor,
        *texts: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Return the residuals of the down blocks, then of the mid block; `kinds` are places in the network's table,
        `images` tell rows of one image."""
        network, passes = self._network, self._passes
        added = added_conditions(Conditioning(states, *texts))
        terms = passes.time_terms(timesteps, latents.dtype, added, self._embedded_kinds(kinds, latents.dtype))
        hidden = network.conv_in(latents)
        hidden = hidden + embedded + self._spread(hidden, embedded, kinds, images)
        return _residuals(network, passes.encode_behind(hidden, AttendedTexts(passes.project_text(states)), terms))

    def _embedded_kinds(self, kinds: Tensor, dtype: torch.dtype) -> Tensor:
        network = self._network
        chosen = functional.one_hot(kinds, len(network.task_embedding)).to(dtype)
        signs = network.control_type_proj(chosen.flatten()).reshape(len(kinds), -1).to(dtype)
        return cast("Tensor", network.control_add_embedding(signs))

    def _spread(self, hidden: Tensor, embedded: Tensor, kinds: Tensor, images: Tensor) -> Tensor:
        """Return what the network's transformer adds to every place of a channel: (rows, channels, 1, 1).

        Published networks attend over the rows of the batch instead of a row's conditions, and diffusers runs them so.
        Here the rows of an image attend to each other alone: it has the residuals that it has by itself.
        """
        network = self._network
        told = embedded.mean(dim=(2, 3)) + network.task_embedding[kinds]
        mixed = torch.stack([told, hidden.mean(dim=(2, 3))], dim=1)
        apart = images[:, None] != images[None, :]
        for layer in network.transformer_layes:
            normed = layer.ln_1(mixed)
            mixed = mixed + layer.attn(normed, normed, normed, need_weights=False, attn_mask=apart)[0]
            mixed = mixed + layer.mlp(layer.ln_2(mixed))
        return cast("Tensor", network.spatial_ch_projs(mixed[:, 0]))[:, :, None, None]


def _residuals(network: Any, encoded: UNetEncoding) -> tuple[Tensor, ...]:
    layers = zip(network.controlnet_down_blocks, encoded.skips, strict=True)
    return (*(layer(skip) for layer, skip in layers), network.controlnet_mid_block(encoded.hidden))


def _pooled_width(config: Mapping[str, Any]) -> int:
    """Return the width that SDXL's added embedding takes in addition to six sizes."""
    return int(config["projection_class_embeddings_input_dim"]) - 6 * int(config["addition_time_embed_dim"])
