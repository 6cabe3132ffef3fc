"""Encode pixels as PNG (RFC 2083) faster than Pillow.

A row's filter is chosen on the device of the pixels, and zlib searches only for runs: files of photographs are no
larger than with a search for repetitions, in a fifth of the time. The encoding releases the interpreter lock, which
Pillow holds: the device would idle until another thread could launch the next step.
"""

import struct
import zlib

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.images.png_chunks import png_chunk, png_file

CHANNELS = 3
# Pixels filtered at a time: on a CPU the intermediate results fit the cache; on a GPU large bands need fewer launches.
_HOST_BAND, _DEVICE_BAND = 2**15, 2**20
_HEADER = struct.Struct(">IIBBBBB")
_BITS, _RGB = 8, 2


def filtered_rows(pixels: Tensor) -> Tensor:
    """Return pixels (height, width, 3) of bytes as rows of PNG (height, 1 + 3 * width), on their device: each row
    starts with the number of the filter with the smallest sum of differences (RFC 2083, section 9.6)."""
    height, width, _ = pixels.shape
    rows = pixels.reshape(height, width * CHANNELS).to(torch.int16)
    # Before the first row, and left of each, there are zeros.
    known = functional.pad(rows, (CHANNELS, 0, 1, 0))
    band = max((_HOST_BAND if pixels.device.type == "cpu" else _DEVICE_BAND) // width, 1)
    return torch.cat([_filtered(known[first : first + band + 1]) for first in range(0, height, band)])


def _filtered(known: Tensor) -> Tensor:
    """Return the filtered rows except the first, which is only the row above."""
    rows, left = known[1:, CHANNELS:], known[1:, :-CHANNELS]
    above, corner = known[:-1, CHANNELS:], known[:-1, :-CHANNELS]
    guesses = (torch.zeros_like(rows), left, above, (left + above) >> 1, _paeth(left, above, corner))
    differences = torch.stack([rows - guess for guess in guesses]).to(torch.uint8)
    sizes = differences.view(torch.int8).abs().view(torch.uint8).sum(dim=2, dtype=torch.int64)
    chosen = sizes.argmin(dim=0)
    taken = differences.gather(0, chosen[None, :, None].expand(1, *rows.shape))[0]
    return torch.cat([chosen[:, None].to(torch.uint8), taken], dim=1)


def _paeth(left: Tensor, above: Tensor, corner: Tensor) -> Tensor:
    """Return the neighbour nearest to left + above - corner."""
    to_left, to_above = (above - corner).abs(), (left - corner).abs()
    to_corner = (left + above - 2 * corner).abs()
    other = torch.where(to_above <= to_corner, above, corner)
    return torch.where((to_left <= to_above) & (to_left <= to_corner), left, other)


def png_of_rows(rows: Tensor) -> bytes:
    """Return the PNG file of rows from `filtered_rows`, in host memory."""
    height, width = rows.shape[0], (rows.shape[1] - 1) // CHANNELS
    deflate = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    content = deflate.compress(rows.numpy().data) + deflate.flush()
    return png_file(png_chunk(b"IHDR", _HEADER.pack(width, height, _BITS, _RGB, 0, 0, 0)), png_chunk(b"IDAT", content))
