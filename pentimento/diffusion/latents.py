"""Latents as stored bytes: one safetensors tensor, in the precision the engine computes in.

A latent is stored exactly, at unit variance. Resumed by the same sampler, the remaining steps give the bits of an
uninterrupted run with DDIM, and stay within 1e-4 of it with Euler, whose own scale costs one rounding each way. Half
precision would halve the bytes and cost about 1e-3 of the final latent.
"""

from collections.abc import Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

_NAME = "latent"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def latent_to_bytes(latent: Tensor) -> bytes:
    """Return a latent (1, channels, height, width) as a safetensors file."""
    return bytes(save({_NAME: latent.detach().cpu().contiguous()}))


def latent_from_bytes(data: bytes, shape: Sequence[int]) -> Tensor:
    """Return the latent of a safetensors file. Raises ValueError when the bytes are no latent of that shape, or hold
    NaN or infinities."""
    try:
        latent: Tensor = load(data)[_NAME]
    except (SafetensorError, KeyError):
        raise ValueError("not a stored latent") from None
    if latent.dtype not in _DTYPES or tuple(latent.shape) != tuple(shape):
        raise ValueError(f"a latent of shape {list(latent.shape)}, wanted {list(shape)}")
    if not torch.isfinite(latent).all():
        raise ValueError("a latent with values that are not finite")
    return latent
