"""Latents as stored bytes: one safetensors tensor at unit variance, perhaps in half precision, perhaps compressed.

Stored exactly and resumed by the same sampler, the remaining steps give the bits of an uninterrupted run with DDIM, and
stay within 1e-4 of it with Euler, whose own scale costs one rounding each way. What half precision costs of the final
picture, and what compression saves, is measured by `benchmarks.latent_storage`. Whatever a latent was stored as is
read: the bytes say it themselves.
"""

import math
from collections.abc import Sequence
from enum import Enum

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from pentimento.diffusion.latent_frames import UnknownLatentFormat, deflated, framed_file

_NAME = "latent"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_WIDEST_ITEM_BYTES = 4
_MAX_HEADER_BYTES = 4096
_DEFLATE = "-deflate"


class LatentFormat(Enum):
    """What a latent is stored as: in the precision that the engine computes in, or in half of float32; compressed or
    not."""

    EXACT = "exact"
    EXACT_DEFLATE = "exact-deflate"
    FLOAT16 = "float16"
    FLOAT16_DEFLATE = "float16-deflate"
    BFLOAT16 = "bfloat16"
    BFLOAT16_DEFLATE = "bfloat16-deflate"

    @property
    def dtype(self) -> torch.dtype | None:
        """The element type that float32 is stored as; None for as it is."""
        name = self.value.removesuffix(_DEFLATE)
        return {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(name)

    @property
    def is_compressed(self) -> bool:
        """Whether the file is compressed."""
        return self.value.endswith(_DEFLATE)


def latent_to_bytes(latent: Tensor, format: LatentFormat = LatentFormat.EXACT) -> bytes:
    """Return a latent (1, channels, height, width) as stored bytes. One that half precision cannot hold is kept as it
    is, and so is one that has half precision already."""
    file = bytes(save({_NAME: _narrowed(latent.detach().cpu(), format.dtype).contiguous()}))
    return deflated(file) if format.is_compressed else file


def latent_from_bytes(data: bytes, shape: Sequence[int]) -> Tensor:
    """Return the latent of stored bytes, in the element type that it was stored in.

    Raises ValueError when the bytes are no latent of that shape, or hold NaN or infinities; as UnknownLatentFormat when
    they are of a format that another version wrote. Makes no more than a latent of that shape takes.
    """
    file = framed_file(data, math.prod(shape) * _WIDEST_ITEM_BYTES + _MAX_HEADER_BYTES)
    try:
        latent: Tensor = load(file)[_NAME]
    except (SafetensorError, KeyError):
        raise ValueError("not a stored latent") from None
    if latent.dtype not in _DTYPES:
        raise UnknownLatentFormat(f"a latent of {latent.dtype}")
    if tuple(latent.shape) != tuple(shape):
        raise ValueError(f"a latent of shape {list(latent.shape)}, wanted {list(shape)}")
    if not torch.isfinite(latent).all():
        raise ValueError("a latent with values that are not finite")
    return latent


def _narrowed(latent: Tensor, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or latent.dtype is not torch.float32:
        return latent
    narrow = latent.to(dtype)
    return narrow if torch.isfinite(narrow).all() else latent
