"""Decode a latent in overlapping tiles, blended as in diffusers' AutoencoderKL: the decoder's memory then depends on
the tile and not on the image."""

from collections.abc import Callable

import torch
from torch import Tensor

# Cells of a tile's side; a quarter overlaps the next tile.
LEAST_TILE = 4


def decoded_in_tiles(decode: Callable[[Tensor], Tensor], latent: Tensor, tile: int, factor: int) -> Tensor:
    """Return the pixels (rows, 3, height, width) of a latent, decoded in tiles of `tile` cells, a multiple of 4; a cell
    has `factor` pixels a side."""
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
