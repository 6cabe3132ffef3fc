"""Arrange images with their captions in rows on one sheet."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

MARGIN = 8
LINES, LINE_PX = 5, 13
LETTER_PX = 4.9


@dataclass(frozen=True)
class Tile:
    picture: Tensor  # (3, height, width) in 0..1
    caption: str


def enlarge(picture: Tensor, zoom: int) -> Image.Image:
    """Enlarge a (1 or 3, height, width) image of floats in 0..1, each pixel to a square."""
    pixels = picture.expand(3, -1, -1).clamp(0.0, 1.0).permute(1, 2, 0).numpy() * 255.0 + 0.5
    image = Image.fromarray(pixels.astype(np.uint8))
    return image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)


def grid(tiles: Sequence[Tile], columns: int = 4, zoom: int = 2) -> Image.Image:
    """Return images with their captions below them, in rows."""
    pictures = [enlarge(tile.picture, zoom) for tile in tiles]
    side = pictures[0].width
    texts = [textwrap.wrap(tile.caption, int(side / LETTER_PX))[:LINES] for tile in tiles]
    width, height = side + MARGIN, pictures[0].height + LINE_PX * max(map(len, texts)) + MARGIN
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (min(columns, len(tiles)) * width + MARGIN, rows * height + MARGIN), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=10)
    for number, (picture, text) in enumerate(zip(pictures, texts, strict=True)):
        left, top = MARGIN + number % columns * width, MARGIN + number // columns * height
        sheet.paste(picture, (left, top))
        pen.multiline_text((left, top + picture.height + 2), "\n".join(text), fill=(40, 40, 40), font=font, spacing=2)
    return sheet
