"""Run the decoder of diffusers' AutoencoderKL with fused kernels: one kernel covers the operations between two
convolutions, and tensors are channels last from the first convolution to the last."""

from typing import Any, cast

import torch
from torch import Tensor

from pentimento.diffusion.kernels.layers import FusedNorm, residual_block

_BLOCK = "UpDecoderBlock2D"


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
    if type(decoder).__name__ != "Decoder" or not isinstance(decoder.conv_norm_out, torch.nn.GroupNorm):
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
