"""Make the model cards' sample grids: each model's images, next to those without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from zoo.drawing.captions import canonical_caption
from zoo.painting.grid import Tile, grid
from zoo.painting.samples import PROMPTS, Manner, conditions_of, drawn, example_scenes, image_source
from zoo.registry import ZooModel

LIMIT_BYTES = 60_000
PALETTES = (256, 128, 64, 32, 16)
SCENES = 4
LORA_WEIGHTS = (0.0, 0.5, 1.0)


def example_grid(model: ZooModel, weights: Path) -> Image.Image | None:
    """Return an exported model's grid; None for models without images."""
    if model.kind not in GRIDS:
        return None
    make, columns = GRIDS[model.kind]
    return grid(make(model, weights), columns)


def save_within(image: Image.Image, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Save a PNG with the most colours that fit the limit."""
    for colours in PALETTES:
        image.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= limit_bytes:
            return


def _pipeline(model: ZooModel, weights: Path) -> list[Tile]:
    generated = image_source(Manner(model.name), weights)(PROMPTS, range(len(PROMPTS)))
    return [Tile(picture, caption) for picture, caption in zip(generated, PROMPTS, strict=True)]


def _controlnet(model: ZooModel, weights: Path) -> list[Tile]:
    """Return the drawing, its condition, and images with and without the ControlNet."""
    scenes = example_scenes(SCENES)
    captions, seeds = [canonical_caption(scene) for scene in scenes], range(SCENES)
    told, base = conditions_of(model.name, scenes), Manner(str(model.base))
    obeyed = image_source(replace(base, controlnet=model.name), weights, told)(captions, seeds)
    free = image_source(base, weights)(captions, seeds)
    columns = ((drawn(scenes), "drawn"), (told, "told"), (obeyed, "painted under it"), (free, "painted without it"))
    return _rows(columns, captions)


def _lora(model: ZooModel, weights: Path) -> list[Tile]:
    """Return images from the same noise at growing weights."""
    captions, seeds = PROMPTS[:SCENES], range(SCENES)
    columns = []
    for weight in LORA_WEIGHTS:
        manner = Manner(str(model.base), lora=model.name, lora_weight=weight)
        columns.append((image_source(manner, weights)(captions, seeds), f"weight {weight:g}"))
    return [tile for row in range(SCENES) for tile in (Tile(images[row], name) for images, name in columns)]


def _discriminator(model: ZooModel, weights: Path) -> list[Tile]:
    """Return the same captions drawn, and by both models of the cascade, each with its confidence."""
    from transformers import AutoModelForImageClassification

    from zoo.evaluate.calibration import confidence

    assert model.cascade is not None
    scenes = example_scenes(SCENES)
    captions, seeds = [canonical_caption(scene) for scene in scenes], range(SCENES)
    kinds = [(drawn(scenes), "drawn")]
    kinds += [(image_source(Manner(name), weights)(captions, seeds), name) for name in reversed(model.cascade)]
    classifier = AutoModelForImageClassification.from_pretrained(weights / model.name).eval()
    with torch.no_grad():
        sure = [confidence(classifier, images * 2.0 - 1.0) for images, _ in kinds]
    return [
        Tile(images[row], f"{name}: {float(confident[row]):.2f}")
        for row in range(SCENES)
        for (images, name), confident in zip(kinds, sure, strict=True)
    ]


def _rows(columns: tuple[tuple[Tensor, str], ...], captions: list[str]) -> list[Tile]:
    tiles = []
    for row, caption in enumerate(captions):
        names = [caption, *(name for _, name in columns[1:])]
        tiles += [Tile(images[row], name) for (images, _), name in zip(columns, names, strict=True)]
    return tiles


GRIDS: dict[str, tuple[Callable[[ZooModel, Path], list[Tile]], int]] = {
    "pipeline": (_pipeline, 4),
    "controlnet": (_controlnet, 4),
    "lora": (_lora, len(LORA_WEIGHTS)),
    "discriminator": (_discriminator, 3),
}
