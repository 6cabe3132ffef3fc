"""Generate samples of any exported model as tiles: captions, with an adapter or a ControlNet's condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pentimento.domain.errors import InvalidArgument
from zoo.drawing.captions import canonical_caption
from zoo.drawing.conditions import edges, layout
from zoo.drawing.dataset import HELD_OUT_SEED
from zoo.drawing.scenes import IMAGE_SIZE, Scene, draw, scene_at
from zoo.files import bad_file
from zoo.painting.controlnet import add_control, generate_controlled
from zoo.painting.flow import generate_flow, load_flow_pipeline
from zoo.painting.grid import Tile
from zoo.painting.lora import add_style
from zoo.painting.pipeline import generate, load_pipeline
from zoo.registry import WEIGHTS, entry_of

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
Generate = Callable[[Sequence[str], Sequence[int]], Tensor]


@dataclass(frozen=True)
class Manner:
    """Set steps and guidance scale, by the registry if None, and an adapter, if any."""

    model: str = "tiny-heavy"
    steps: int | None = None
    scale: float | None = None
    lora: str | None = None
    lora_weight: float = 1.0
    controlnet: str | None = None


def image_source(manner: Manner, weights: Path = WEIGHTS, conditions: Tensor | None = None) -> Generate:
    """Return a function from captions with seeds to pixels (n, 3, height, width) in 0..1; `conditions` are for a
    ControlNet."""
    entry = kind_of(manner.model, "pipeline", weights)
    steps = int(entry["default_steps"]) if manner.steps is None else manner.steps
    scale = float(entry["default_guidance_scale"]) if manner.scale is None else manner.scale
    for name, kind in ((manner.lora, "lora"), (manner.controlnet, "controlnet")):
        if name is not None and kind_of(name, kind, weights)["base"]["name"] != manner.model:
            raise InvalidArgument.of(kind, f"{name} does not stand on {manner.model}")
    if entry["family"] == "sd3":
        flow = load_flow_pipeline(weights / manner.model)
        return lambda prompts, seeds: generate_flow(flow, list(prompts), list(seeds), steps, scale)
    pipeline = load_pipeline(weights / manner.model)
    if manner.lora is not None:
        add_style(pipeline, weights / manner.lora, manner.lora)
        pipeline.set_adapters(manner.lora, manner.lora_weight)
    if manner.controlnet is None:
        return lambda prompts, seeds: generate(pipeline, list(prompts), list(seeds), steps, scale)
    assert conditions is not None
    told = conditions
    controlled = add_control(pipeline, weights / manner.controlnet)
    return lambda prompts, seeds: generate_controlled(controlled, list(prompts), list(seeds), told, steps, scale)


def kind_of(name: str, kind: str, weights: Path) -> dict[str, Any]:
    """Return the registry's entry. Raises InvalidArgument for a model of another kind."""
    entry = entry_of(name, weights)
    if entry["kind"] != kind:
        raise InvalidArgument.of(kind, f"{name} is no {kind} but a {entry['kind']}")
    return entry


def example_scenes(count: int) -> list[Scene]:
    """Return held-out scenes, unseen in training."""
    return [scene_at(HELD_OUT_SEED, index, held_out=True)[0] for index in range(count)]


def drawn(scenes: Sequence[Scene]) -> Tensor:
    return torch.stack([torch.from_numpy(draw(scene)[0]).permute(2, 0, 1) for scene in scenes])


def conditions_of(controlnet: str, scenes: Sequence[Scene]) -> Tensor:
    """Return a ControlNet's conditions of scenes: (n, 1, size, size) in 0..1."""
    return layout(scenes) if controlnet.endswith("layout") else edges(drawn(scenes))


def read_condition(path: Path) -> Tensor:
    """Return an image file as a condition (1, size, size) in 0..1."""
    try:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("L").resize((IMAGE_SIZE, IMAGE_SIZE)), np.float32)
    except OSError:
        raise bad_file(path, "a picture", "it cannot be read as one") from None
    return torch.from_numpy(pixels / 255.0)[None]


def sample_tiles(
    manner: Manner, prompts: Sequence[str], seed: int, weights: Path = WEIGHTS, condition: Path | None = None
) -> list[Tile]:
    """Return one tile a prompt; under a ControlNet each follows a tile of its condition."""
    if manner.controlnet is None:
        asked = prompts or PROMPTS
        generated = image_source(manner, weights)(asked, range(seed, seed + len(asked)))
        return [Tile(picture, caption) for picture, caption in zip(generated, asked, strict=True)]
    scenes = example_scenes(len(prompts) or 6)
    asked = prompts or [canonical_caption(scene) for scene in scenes]
    told = conditions_of(manner.controlnet, scenes)
    if condition is not None:
        told = read_condition(condition).expand(len(asked), -1, -1, -1)
    generated = image_source(manner, weights, told)(asked, range(seed, seed + len(asked)))
    rows = zip(told, generated, asked, strict=True)
    return [tile for line, picture, caption in rows for tile in (Tile(line, "told"), Tile(picture, caption))]
