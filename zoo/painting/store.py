"""Cache generated images in the work folder, so that repeated or further figures generate none again.

A manner is everything that an image depends on except its prompt, seed and condition: weights, steps, guidance. Each
manner has one safetensors file, replaced after every batch, so that a stopped run continues.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from pentimento.diffusion.checkpoint import digest_directory
from zoo.files import read_tensors, write_tensors

FOLDER = "painted"
BATCH = 64
Generate = Callable[[list[int]], Tensor]


def weights_digest(*folders: Path) -> str:
    """Return the sha256 of the folders' models, which excludes cards, their images and logs."""
    lines = (f"{folder.name}\0{digest_directory(folder)}\n" for folder in folders)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def as_bytes(images: Tensor) -> Tensor:
    """Return floats in 0..1 as uint8, rounded as a PNG encoder does."""
    return (images.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


class ImageStore:
    """Cache the images of one manner, by prompt, seed and condition."""

    def __init__(self, work: Path, manner: dict[str, object]) -> None:
        name = hashlib.sha256(json.dumps(manner, sort_keys=True).encode()).hexdigest()[:24]
        self.path = work / FOLDER / f"{name}.safetensors"
        self.manner = manner
        self._images: dict[int, Tensor] = {}
        if self.path.exists():
            stored = read_tensors(self.path, "painted pictures", ("keys", "pictures"))
            self._images = dict(zip(stored["keys"].tolist(), stored["pictures"], strict=True))

    def get(
        self, prompts: Sequence[str], seeds: Sequence[int], generate: Generate, conditions: Sequence[str] | None = None
    ) -> Tensor:
        """Return uint8 (n, 3, height, width) in the requested order.

        `generate(rows)` generates missing ones, floats in 0..1; `conditions` names each one's further inputs, if any.
        """
        names = conditions if conditions is not None else [""] * len(prompts)
        asked = zip(prompts, seeds, names, strict=True)
        keys = [_number(json.dumps([prompt, seed, name])) for prompt, seed, name in asked]
        absent = [row for row, key in enumerate(keys) if key not in self._images]
        for start in range(0, len(absent), BATCH):
            rows = absent[start : start + BATCH]
            for row, image in zip(rows, as_bytes(generate(rows)), strict=True):
                self._images[keys[row]] = image
            self._save()
        return torch.stack([self._images[key] for key in keys])

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {"keys": torch.tensor(list(self._images)), "pictures": torch.stack(list(self._images.values()))}
        write_tensors(self.path, tensors, {"manner": json.dumps(self.manner, sort_keys=True)})
