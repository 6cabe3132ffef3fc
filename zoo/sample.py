"""A grid of pictures with their captions as a PNG: `python -m zoo.sample [PROMPT ...] [--model NAME --out FILE]`."""

from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from zoo.painting import load_pipeline, paint
from zoo.registry import WEIGHTS, read_registry

PROMPTS = (
    "a large striped red heart in the centre on a white background",
    "a big glossy blue circle in the top right corner at sunset",
    "a medium flat yellow star on a black background",
    "a bordered green square to the left of a pink triangle in the sky",
    "an orange diamond above a purple ring, shaded style, on a grey background",
    "a huge outlined cyan cross in a meadow",
    "a tiny brown triangle in the bottom left on a checkerboard",
    "a black ring to the right of a golden star on beige stripes",
)
ZOOM = 5
COLUMNS = 4
CAPTION_HEIGHT = 52
MARGIN = 8


def enlarge(picture: Tensor, zoom: int = ZOOM) -> Image.Image:
    """A (3, height, width) picture of floats in 0..1, each pixel a square."""
    pixels = (picture.clamp(0.0, 1.0).permute(1, 2, 0).numpy() * 255.0 + 0.5).astype(np.uint8)
    image = Image.fromarray(pixels)
    return image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)


def grid(pictures: Tensor, captions: list[str], columns: int = COLUMNS) -> Image.Image:
    tiles = [enlarge(picture) for picture in pictures]
    width, height = tiles[0].width + MARGIN, tiles[0].height + CAPTION_HEIGHT
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * width + MARGIN, rows * height + MARGIN), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=11)
    for number, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        left, top = MARGIN + number % columns * width, MARGIN + number // columns * height
        sheet.paste(tile, (left, top))
        text = "\n".join(textwrap.wrap(caption, 29)[:3])
        pen.multiline_text((left, top + tile.height + 3), text, fill=(40, 40, 40), font=font, spacing=2)
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.sample", description=__doc__)
    parser.add_argument("prompts", nargs="*", default=list(PROMPTS))
    parser.add_argument("--model", default="tiny-heavy")
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--scale", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("zoo-samples.png"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    entry = read_registry(arguments.weights)[arguments.model]
    steps = arguments.steps or int(entry["default_steps"])  # type: ignore[call-overload]
    scale = arguments.scale or float(entry["default_guidance_scale"])  # type: ignore[arg-type]
    seeds = [arguments.seed + number for number in range(len(arguments.prompts))]
    pipeline = load_pipeline(arguments.weights / arguments.model)
    pictures = paint(pipeline, arguments.prompts, seeds, steps, scale)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    grid(pictures, arguments.prompts).save(arguments.out, optimize=True)
    print(arguments.out)


if __name__ == "__main__":
    main()
