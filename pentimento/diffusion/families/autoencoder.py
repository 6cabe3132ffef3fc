"""Convert between pixels and the denoiser's latents, which are the autoencoder's latents shifted and scaled.

With fused kernels the decoder of diffusers' AutoencoderKL runs here: one kernel covers the operations between two
convolutions, and tensors are channels last from the first convolution to the last."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.kernels.layers import FusedNorm, residual_block

_BLOCK = "UpDecoderBlock2D"
# Cells of a side of the smallest tile; a quarter overlaps the next tile.
LEAST_TILE = 4


class DecoderPass:
    """Run the forward pass of one decoder; its layers may be fused at any time."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    @property
    def is_fused(self) -> bool:
        """Return whether the decoder's norms have kernels."""
        return isinstance(self._decoder.conv_norm_out, FusedNorm)

    def __call__(self, latent: Tensor) -> Tensor:
        """Return pixels (rows, 3, height, width) of the latent that the decoder takes."""
        decoder = self._decoder
        hidden = decoder.conv_in(latent.contiguous(memory_format=torch.channels_last))
        first, *others = decoder.mid_block.resnets
        hidden = residual_block(first, hidden)
        for attention, resnet in zip(decoder.mid_block.attentions, others, strict=True):
            hidden = residual_block(resnet, attention(hidden))
        for block in decoder.up_blocks:
            for resnet in block.resnets:
                hidden = residual_block(resnet, hidden)
            for upsampler in block.upsamplers or ():
                hidden = upsampler(hidden)
        return cast("Tensor", decoder.conv_out(decoder.conv_act(decoder.conv_norm_out(hidden))))


def decoder_pass(decoder: Any) -> DecoderPass | None:
    """Return the pass of a decoder; None if it is not supported, and diffusers' forward must run."""
    return DecoderPass(decoder) if _covers(decoder) else None


def _covers(decoder: Any) -> bool:
    last_norm = getattr(decoder, "conv_norm_out", None)
    if type(decoder).__name__ != "Decoder" or not isinstance(last_norm, torch.nn.GroupNorm):
        return False
    blocks = (decoder.mid_block, *decoder.up_blocks)
    return (
        all(type(block).__name__ == _BLOCK for block in decoder.up_blocks)
        and all(_is_plain(resnet) for block in blocks for resnet in block.resnets)
        and all(attention is not None and attention.spatial_norm is None for attention in decoder.mid_block.attentions)
    )


def _is_plain(resnet: Any) -> bool:
    return (
        resnet.time_emb_proj is None
        and resnet.time_embedding_norm in ("default", "group")
        and resnet.upsample is None
        and resnet.downsample is None
        and isinstance(resnet.norm2, torch.nn.GroupNorm)
        and isinstance(resnet.nonlinearity, torch.nn.SiLU)
    )


@dataclass(frozen=True)
class LatentScale:
    """Hold a family's normalisation: (latent - shift) * scale / deviation; shift and deviation may be by channel,
    (1, channels, 1, 1)."""

    scale: float
    shift: float | Tensor = 0.0
    deviation: float | Tensor = 1.0

    @staticmethod
    def of(config: Any, *, shifted: bool = False) -> "LatentScale":
        """Return the scale of an autoencoder's configuration. Raises BadCheckpoint for a value that is no number, or a
        scale of 0."""
        shift = (config.shift_factor or 0.0) if shifted else 0.0
        if not _is_number(config.scaling_factor) or not config.scaling_factor:
            raise BadCheckpoint(f"vae: scaling_factor={config.scaling_factor!r} is no number other than 0")
        if not _is_number(shift):
            raise BadCheckpoint(f"vae: shift_factor={shift!r} is no number")
        return LatentScale(config.scaling_factor, shift)

    def by_channel(self, config: Any, device: torch.device, dtype: torch.dtype) -> "LatentScale":
        """Return the scale with the mean and deviation of each channel, if the configuration states both. Raises
        BadCheckpoint for a value that is no number."""
        if (statistics := channel_statistics(config)) is None:
            return self
        mean, deviation = (values.to(device, dtype) for values in statistics)
        return replace(self, shift=mean, deviation=deviation)


class Autoencoder:
    """Wrap an autoencoder of diffusers (KL, Tiny, DC, or KLQwenImage, for films of one image here) with latents of
    `dtype`. On a CPU the decoder's weights are converted to channels last."""

    def __init__(self, module: Any, scale: LatentScale, device: torch.device, dtype: torch.dtype) -> None:
        self._makes_films = hasattr(module.config, "temperal_downsample")
        if device.type == "cpu" and not self._makes_films:
            # Decoding takes a fifth less time; the encoder's latents keep diffusers' bits.
            module.decoder.to(memory_format=torch.channels_last)
        self._module = module
        self._pass = decoder_pass(module.decoder)
        self._scale = scale
        self._device = device
        self._dtype = dtype
        self.factor = _factor(module.config)
        self._latent_channels = _latent_channels(module.config)
        self._tile = 0

    def latent_shape(self, width_px: int, height_px: int) -> tuple[int, int, int, int]:
        """Return the shape of a latent, (1, channels, height, width), for an image of that size."""
        return (1, self._latent_channels, height_px // self.factor, width_px // self.factor)

    def encode(self, pixels: Tensor, generator: torch.Generator, *, unshifted: bool = False) -> Tensor:
        """Return the latent of pixels (rows, 3, height, width) in -1..1; a stochastic encoder draws from
        `generator`."""
        taken = pixels.to(self._device, self._module.dtype)
        encoded = self._module.encode(taken.unsqueeze(2) if self._makes_films else taken)
        latent = self._drawn(encoded, generator)
        scale = self._scale
        shift = 0.0 if unshifted else scale.shift
        normalised: Tensor = (latent.to(self._dtype) - shift) * scale.scale / scale.deviation
        return normalised

    def _drawn(self, encoded: Any, generator: torch.Generator) -> Tensor:
        """Return the latent of the module's output, before its normalisation."""
        latent: Tensor = encoded.latent_dist.sample(generator) if hasattr(encoded, "latent_dist") else encoded[0]
        return latent.squeeze(2) if self._makes_films else latent

    def tile(self, side_px: int) -> None:
        """Decode images with a longer side in tiles of about that side; 0: whole. Raises ValueError for a side without
        4 cells of a latent."""
        cells = side_px // self.factor // LEAST_TILE * LEAST_TILE
        if side_px and not cells:
            raise ValueError(f"a tile has at least {LEAST_TILE * self.factor} pixels a side with this model")
        self._tile = cells

    def decode(self, latent: Tensor) -> Tensor:
        """Return the pixels (1, 3, height, width), about -1..1, of a latent."""
        if self._tile and max(latent.shape[-2:]) > self._tile:
            return decoded_in_tiles(self._decoded, latent, self._tile, self.factor)
        return self._decoded(latent)

    def _decoded(self, latent: Tensor) -> Tensor:
        scale = self._scale
        own = self._taken(latent.to(self._module.dtype) * scale.deviation / scale.scale + scale.shift)
        if self._pass is not None and self._pass.is_fused:
            behind = self._module.post_quant_conv
            return self._pass(own if behind is None else behind(own))
        pixels: Tensor = self._module.decode(own.unsqueeze(2) if self._makes_films else own, return_dict=False)[0]
        return pixels.squeeze(2) if self._makes_films else pixels

    def _taken(self, latent: Tensor) -> Tensor:
        """Return a latent without its normalisation as the module takes it."""
        return latent

    @property
    def decoder(self) -> torch.nn.Module:
        """Return the network of `decode`."""
        decoder: torch.nn.Module = self._module.decoder
        return decoder

    def check_channels(
        self, directory: object, denoiser_config: Any, *, may_see_mask: bool = False, packed: int = 1
    ) -> bool:
        """Return whether the denoiser takes a mask and masked latents in addition to latents. Raises BadCheckpoint if
        its input or output channels do not match these latents, or `may_see_mask` does not allow a mask. A token of
        the denoiser holds `packed` cells of a latent."""
        taken, made, own = denoiser_config.in_channels, denoiser_config.out_channels, packed * self._latent_channels
        sees_mask: bool = may_see_mask and taken == 2 * own + 1
        if taken != own and not sees_mask:
            raise BadCheckpoint(
                f"{directory}: the denoiser takes {taken} channels, the autoencoder makes {own} "
                "(checkpoints that are conditioned on something else are not supported)"
            )
        if made not in (None, own):
            raise BadCheckpoint(f"{directory}: the denoiser makes {made} channels of {own} (a learned variance?)")
        return sees_mask


def _factor(config: Any) -> int:
    """Return the pixels of a side of one latent's cell: every block after the first one halves the sides."""
    if (halvings := getattr(config, "temperal_downsample", None)) is not None:
        return int(2 ** len(halvings))
    channels = getattr(config, "block_out_channels", None) or config.encoder_block_out_channels
    return int(2 ** (len(channels) - 1))


def _latent_channels(config: Any) -> int:
    return int(config.z_dim if hasattr(config, "z_dim") else config.latent_channels)


def channel_statistics(config: Any) -> tuple[Tensor, Tensor] | None:
    """Return mean and deviation by channel, (1, channels, 1, 1), if the autoencoder states both; else None."""
    mean, deviation = getattr(config, "latents_mean", None), getattr(config, "latents_std", None)
    if mean is None or deviation is None:
        return None
    for name, values, least in (("latents_mean", mean, 0), ("latents_std", deviation, 1)):
        if len(values) != _latent_channels(config) or not all(_is_number(one) and (one or not least) for one in values):
            raise BadCheckpoint(f"vae: {name}={str(values)[:60]} is no number for each channel")
    shape = (1, -1, 1, 1)
    return torch.tensor(mean).view(shape), torch.tensor(deviation).view(shape)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def decoded_in_tiles(decode: Callable[[Tensor], Tensor], latent: Tensor, tile: int, factor: int) -> Tensor:
    """Return the pixels (rows, 3, height, width) of a latent, decoded in overlapping tiles of `tile` cells, a multiple
    of 4, blended as in diffusers' AutoencoderKL; a cell has `factor` pixels a side. The decoder's memory then depends
    on the tile and not on the image."""
    stride = tile - tile // 4
    kept, blended = stride * factor, tile // 4 * factor
    height, width = latent.shape[-2:]
    above: list[Tensor] = []
    rows = []
    for top in range(0, height, stride):
        columns: list[Tensor] = []
        for number, left in enumerate(range(0, width, stride)):
            pixels = decode(latent[..., top : top + tile, left : left + tile]).clone()
            if above:
                _blend(above[number].movedim(-2, -1), pixels.movedim(-2, -1), blended)
            if columns:
                _blend(columns[-1], pixels, blended)
            columns.append(pixels)
        rows.append(torch.cat([pixels[..., :kept, :kept] for pixels in columns], dim=-1))
        above = columns
    return torch.cat(rows, dim=-2)


def _blend(before: Tensor, pixels: Tensor, extent: int) -> None:
    """Blend the last columns of `before` into the first ones of `pixels`, in place."""
    extent = min(before.shape[-1], pixels.shape[-1], extent)
    share = torch.arange(extent, device=pixels.device) / extent
    own = pixels[..., :extent]
    own.copy_(before[..., before.shape[-1] - extent :] * (1 - share) + own * share)
