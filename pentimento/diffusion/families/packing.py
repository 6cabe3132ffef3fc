"""Pack 2x2 cells of a latent into one token, and back: the order of diffusers' FLUX pipelines. Positions of tokens."""

import torch
from torch import Tensor

# Sides of a latent are multiples of it.
PACKED_SIDE = 2
CELLS_OF_TOKEN = PACKED_SIDE**2


def packed(latents: Tensor) -> Tensor:
    """Return latents (rows, channels, height, width) as tokens (rows, height / 2 * width / 2, channels * 4)."""
    rows, channels, height, width = latents.shape
    cells = latents.reshape(rows, channels, height // PACKED_SIDE, PACKED_SIDE, width // PACKED_SIDE, PACKED_SIDE)
    return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpacked(tokens: Tensor, height: int, width: int) -> Tensor:
    """Return tokens as latents (rows, channels, height, width)."""
    size = (height // PACKED_SIDE, width // PACKED_SIDE)
    cells: Tensor = tokens.unflatten(1, size).unflatten(-1, (-1, PACKED_SIDE, PACKED_SIDE))
    return cells.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3).contiguous()


def image_positions(height: int, width: int, axis_count: int, device: torch.device) -> Tensor:
    """Return the positions of an image's tokens, (height * width, axis_count): row and column are on the second and
    third axis, the others are 0. Computed on the device: a recorded pass must not copy from the host."""
    places = torch.zeros(height, width, axis_count, device=device)
    places[..., 1] += torch.arange(height, device=device)[:, None]
    places[..., 2] += torch.arange(width, device=device)
    return places.flatten(0, 1)
