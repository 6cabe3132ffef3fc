"""Hold drawn scenes with captions and labels as arrays: a data set is its seed and its count, cached in the work
folder.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import CLIPTokenizer

from zoo.drawing.captions import labels, natural_caption
from zoo.drawing.scenes import IMAGE_SIZE, draw, scene_at
from zoo.files import bad_file, cached_tensors

TRAIN_SEED, TRAIN_COUNT = 1, 40_000
HELD_OUT_SEED = 2
JUDGE_SEED, JUDGE_COUNT = 3, 32_000
TREATED_SEED, TREATED_COUNT = 4, 3_000


@dataclass(frozen=True)
class Drawings:
    images: Tensor  # uint8 (n, 3, size, size)
    coverage: Tensor  # uint8 (n, size, size): the objects' coverage
    tokens: Tensor  # int64 (n, max tokens)
    image_labels: Tensor  # int64 (n, attributes)
    text_labels: Tensor  # the same, UNSAID if the caption omits it

    def __len__(self) -> int:
        return len(self.images)


def tokenise(tokenizer: CLIPTokenizer, texts: list[str]) -> Tensor:
    """Return token ids padded to the tokenizer's length, as in a diffusers pipeline."""
    batch = tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt")
    return batch["input_ids"]


def draw_many(
    seed: int, count: int, tokenizer: CLIPTokenizer, held_out: bool | None = False, treatment: str | None = None
) -> Drawings:
    images, coverages, texts, seen, said = [], [], [], [], []
    for index in range(count):
        scene, rng = scene_at(seed, index, held_out)
        image, coverage = draw(scene, treatment=treatment)
        caption = natural_caption(scene, rng)
        images.append((image * 255.0 + 0.5).astype(np.uint8).transpose(2, 0, 1))
        coverages.append((coverage * 255.0 + 0.5).astype(np.uint8))
        texts.append(caption.text)
        seen.append(labels(scene))
        said.append(labels(scene, caption.said))
    return Drawings(
        torch.from_numpy(np.stack(images)),
        torch.from_numpy(np.stack(coverages)),
        tokenise(tokenizer, texts),
        torch.tensor(seen),
        torch.tensor(said),
    )


def cached_drawings(
    work: Path,
    seed: int,
    count: int,
    tokenizer: CLIPTokenizer,
    held_out: bool | None = False,
    treatment: str | None = None,
) -> Drawings:
    """Return a seed's drawings; `held_out` selects combinations as in `scene_at`, by default without held-out ones."""
    name = "-".join(["drawings", str(seed), str(count), *([treatment] if treatment else [])])
    path = work / f"{name}.safetensors"
    what = f"{count} drawings of {IMAGE_SIZE} px"
    names = [field.name for field in fields(Drawings)]
    found = cached_tensors(path, what, names, lambda: vars(draw_many(seed, count, tokenizer, held_out, treatment)))
    if found["images"].shape != (count, 3, IMAGE_SIZE, IMAGE_SIZE):
        raise bad_file(path, what, f"its images are {tuple(found['images'].shape)}")
    return Drawings(**found)


def as_pixels(images: Tensor) -> Tensor:
    """Convert uint8 images to the autoencoder's floats in -1..1."""
    return images.float() / 127.5 - 1.0
