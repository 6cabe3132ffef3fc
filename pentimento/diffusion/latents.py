"""Convert latents to stored bytes: one safetensors tensor at unit variance, optionally in half precision.

Stored exactly and resumed by the same sampler, the remaining steps give the bits of an uninterrupted run with DDIM, and
stay within 1e-4 of it with Euler: its scale costs one rounding each way. `benchmarks.latent_storage` measures the
effect of half precision on the final image.
"""

import math
from collections.abc import Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from pentimento.devices.choices import LatentFormat

_NAME = "latent"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_WIDEST_ITEM_BYTES = 4
_MAX_HEADER_BYTES = 4096


class UnknownLatentFormat(ValueError):
    """Report a stored latent in a format unknown to this version. Its bytes may be valid."""


def latent_to_bytes(latent: Tensor, format: LatentFormat = LatentFormat.EXACT) -> bytes:
    """Return a latent (1, channels, height, width) as stored bytes. A latent out of half precision's range, or already
    in half precision, is stored unchanged."""
    own = latent.detach().cpu()
    return bytes(save({_NAME: (own if format is LatentFormat.EXACT else _narrowed(own)).contiguous()}))


def latent_from_bytes(data: bytes, shape: Sequence[int]) -> Tensor:
    """Return the latent of stored bytes, in the element type that it was stored in.

    Raises ValueError if the bytes are no latent of that shape, or hold NaN or infinities; UnknownLatentFormat, a
    ValueError, if another version wrote their format. Allocates no more than a latent of that shape takes.
    """
    most_bytes = math.prod(shape) * _WIDEST_ITEM_BYTES + _MAX_HEADER_BYTES
    if len(data) > most_bytes:
        raise ValueError(f"a file of {len(data)} bytes, where at most {most_bytes} can be")
    try:
        latent: Tensor = load(data)[_NAME]
    except (SafetensorError, KeyError):
        raise ValueError("not a stored latent") from None
    if latent.dtype not in _DTYPES:
        raise UnknownLatentFormat(f"a latent of {latent.dtype}")
    if tuple(latent.shape) != tuple(shape):
        raise ValueError(f"a latent of shape {list(latent.shape)}, wanted {list(shape)}")
    if not torch.isfinite(latent).all():
        raise ValueError("a latent with values that are not finite")
    return latent


def _narrowed(latent: Tensor) -> Tensor:
    if latent.dtype is not torch.float32:
        return latent
    narrow = latent.to(torch.float16)
    return narrow if torch.isfinite(narrow).all() else latent
