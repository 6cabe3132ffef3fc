"""Paint captions into a grid of pictures: `pentimento zoo sample [PROMPT …] [--model NAME --out FILE]`.

pentimento zoo sample "a red star at night" --model tiny-flow
pentimento zoo sample --lora tiny-lora-neon --lora-weight 0.7
pentimento zoo sample --controlnet tiny-controlnet-edges     # told what drawn scenes show
"""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from pentimento.domain.errors import InvalidArgument
from zoo.captions import canonical_caption
from zoo.command import run
from zoo.conditions import edges, layout
from zoo.dataset import HELD_OUT_SEED
from zoo.files import bad_file
from zoo.painting import load_pipeline, paint
from zoo.painting_control import add_control, paint_controlled
from zoo.painting_flow import load_flow_pipeline, paint_flow
from zoo.painting_lora import add_style
from zoo.registry import WEIGHTS, entry_of
from zoo.scenes import IMAGE_SIZE, Scene, draw, scene_at
from zoo.training import DEVICES, choose_device

PROMPTS = (
    "a large dotted red heart in the centre on a white background",
    "a huge crosshatched yellow star in the middle at night",
    "a big glossy blue circle in the top right corner at sunset",
    "a medium striped purple moon on the left side on a brick wall",
    "a green square to the left of a pink triangle, outlined style in the sky",
    "a red ring, a yellow cross and a blue arrow side by side on grey",
    "an orange diamond above a purple ring, shaded style on a checkerboard",
    "a pink heart, a cyan moon and an orange star stacked at night",
    "a small outlined cyan arrow in the bottom left corner in a meadow",
    "a black cross to the right of a red circle, polka-dot style on beige stripes",
    "dotted drawing of a yellow star, a green diamond and a pink square in a row on black",
    "a large crosshatched brown ring at the bottom against a blue sky",
)
MARGIN = 8
LINES, LINE_PX = 5, 13
LETTER_PX = 4.9
Paint = Callable[[Sequence[str], Sequence[int]], Tensor]


@dataclass(frozen=True)
class Tile:
    picture: Tensor  # (3, height, width) in 0..1
    caption: str


@dataclass(frozen=True)
class Manner:
    """How to paint: steps and guidance scale by the registry where None; an adapter on top, if any."""

    model: str = "tiny-heavy"
    steps: int | None = None
    scale: float | None = None
    lora: str | None = None
    lora_weight: float = 1.0
    controlnet: str | None = None


def painter(manner: Manner, weights: Path = WEIGHTS, conditions: Tensor | None = None) -> Paint:
    """What paints captions with seeds into pixels (n, 3, height, width) in 0..1; `conditions` are for a ControlNet."""
    entry = kind_of(manner.model, "pipeline", weights)
    steps = manner.steps or int(entry["default_steps"])
    scale = float(entry["default_guidance_scale"]) if manner.scale is None else manner.scale
    for name, kind in ((manner.lora, "lora"), (manner.controlnet, "controlnet")):
        if name is not None and kind_of(name, kind, weights)["base"]["name"] != manner.model:
            raise InvalidArgument.of(kind, f"{name} does not stand on {manner.model}")
    if entry["family"] == "sd3":
        flow = load_flow_pipeline(weights / manner.model)
        return lambda prompts, seeds: paint_flow(flow, list(prompts), list(seeds), steps, scale)
    pipeline = load_pipeline(weights / manner.model)
    if manner.lora is not None:
        add_style(pipeline, weights / manner.lora, manner.lora)
        pipeline.set_adapters(manner.lora, manner.lora_weight)
    if manner.controlnet is None:
        return lambda prompts, seeds: paint(pipeline, list(prompts), list(seeds), steps, scale)
    assert conditions is not None
    told = conditions
    controlled = add_control(pipeline, weights / manner.controlnet)
    return lambda prompts, seeds: paint_controlled(controlled, list(prompts), list(seeds), told, steps, scale)


def kind_of(name: str, kind: str, weights: Path) -> dict[str, Any]:
    """The registry's entry. InvalidArgument for a model of another kind."""
    entry = entry_of(name, weights)
    if entry["kind"] != kind:
        raise InvalidArgument.of(kind, f"{name} is no {kind} but a {entry['kind']}")
    return entry


def example_scenes(count: int) -> list[Scene]:
    """Held-out scenes, which no training has seen."""
    return [scene_at(HELD_OUT_SEED, index, held_out=True)[0] for index in range(count)]


def drawn(scenes: Sequence[Scene]) -> Tensor:
    return torch.stack([torch.from_numpy(draw(scene)[0]).permute(2, 0, 1) for scene in scenes])


def conditions_of(controlnet: str, scenes: Sequence[Scene]) -> Tensor:
    """What a ControlNet is told of scenes: (n, 1, size, size) in 0..1."""
    return layout(scenes) if controlnet.endswith("layout") else edges(drawn(scenes))


def enlarge(picture: Tensor, zoom: int) -> Image.Image:
    """Each pixel of a (1 or 3, height, width) picture of floats in 0..1 becomes a square."""
    pixels = picture.expand(3, -1, -1).clamp(0.0, 1.0).permute(1, 2, 0).numpy() * 255.0 + 0.5
    image = Image.fromarray(pixels.astype(np.uint8))
    return image.resize((image.width * zoom, image.height * zoom), Image.Resampling.NEAREST)


def grid(tiles: Sequence[Tile], columns: int = 4, zoom: int = 2) -> Image.Image:
    """Pictures with their captions below them, in rows."""
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


def read_condition(path: Path) -> Tensor:
    """A picture file as a condition (1, size, size) in 0..1."""
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L").resize((IMAGE_SIZE, IMAGE_SIZE)), np.float32)
    except OSError:
        raise bad_file(path, "a picture", "it cannot be read as one") from None
    return torch.from_numpy(pixels / 255.0)[None]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="pentimento zoo sample", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="captions; a dozen of the zoo's own otherwise")
    parser.add_argument("--model", default="tiny-heavy", help="a pipeline of the registry [%(default)s]")
    parser.add_argument("--lora", metavar="NAME", help="a LoRA of the registry")
    parser.add_argument("--lora-weight", type=float, default=1.0)
    parser.add_argument("--controlnet", metavar="NAME", help="a ControlNet of the registry")
    parser.add_argument(
        "--condition", type=Path, metavar="FILE", help="what it is told; what drawn scenes show otherwise"
    )
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--scale", type=float, help="guidance scale")
    parser.add_argument("--seed", type=int, default=0, help="of the first picture; the next has the next")
    parser.add_argument("--zoom", type=int, default=3, help="pixels of the grid for one of the picture")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", choices=DEVICES, default="auto")
    parser.add_argument("--out", type=Path, default=Path("zoo-samples.png"), help="PNG to write [%(default)s]")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    choose_device(given.device)
    manner = Manner(given.model, given.steps, given.scale, given.lora, given.lora_weight, given.controlnet)
    tiles = paint_tiles(manner, given.prompts, given.seed, given.weights, given.condition)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    grid(tiles, zoom=given.zoom).save(given.out, optimize=True)
    print(given.out)


def paint_tiles(
    manner: Manner, prompts: Sequence[str], seed: int, weights: Path = WEIGHTS, condition: Path | None = None
) -> list[Tile]:
    """One tile a prompt; under a ControlNet each follows a tile of what it was told."""
    if manner.controlnet is None:
        asked = prompts or PROMPTS
        painted = painter(manner, weights)(asked, range(seed, seed + len(asked)))
        return [Tile(picture, caption) for picture, caption in zip(painted, asked, strict=True)]
    scenes = example_scenes(len(prompts) or 6)
    asked = prompts or [canonical_caption(scene) for scene in scenes]
    told = conditions_of(manner.controlnet, scenes)
    if condition is not None:
        told = read_condition(condition).expand(len(asked), -1, -1, -1)
    painted = painter(manner, weights, told)(asked, range(seed, seed + len(asked)))
    rows = zip(told, painted, asked, strict=True)
    return [tile for line, picture, caption in rows for tile in (Tile(line, "told"), Tile(picture, caption))]


if __name__ == "__main__":
    run(main)
