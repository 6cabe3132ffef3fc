"""Hold scenes to generate from their captions, with the content that each image should show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zoo.drawing.captions import labels, natural_caption
from zoo.drawing.dataset import HELD_OUT_SEED
from zoo.drawing.scenes import Scene, draw, scene_at

SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class Prompts:
    """Hold scenes with one natural caption each; `asked` is the caption's content, `shown` the drawing's."""

    scenes: tuple[Scene, ...]
    captions: tuple[str, ...]
    drawn: Tensor  # uint8 (n, 3, size, size)
    coverage: Tensor  # float (n, size, size) in 0..1: the objects' coverage
    asked: Tensor  # int64 (n, attributes), UNSAID if the caption omits it
    shown: Tensor  # the same, UNSAID if the scene has no such attribute
    first: int = 0  # the first one's number among all scenes of its kind

    def __len__(self) -> int:
        return len(self.captions)

    def seeds(self, count: int) -> list[list[int]]:
        """Return noise seeds (prompts, count), the same for every model, which pairs their images. Prompts of other
        numbers get other noise."""
        rows = range(self.first, self.first + len(self))
        return [[number * SEED_STRIDE + index for number in range(count)] for index in rows]


def examination_prompts(count: int, first: int = 0, held_out: bool = True, seed: int = HELD_OUT_SEED) -> Prompts:
    """Return scenes with a combination unseen in training; with `held_out` False, new scenes without one."""
    scenes, captions, drawn, coverage, asked, shown = [], [], [], [], [], []
    for index in range(first, first + count):
        scene, rng = scene_at(seed, index, held_out)
        image, covered = draw(scene)
        caption = natural_caption(scene, rng)
        scenes.append(scene)
        captions.append(caption.text)
        drawn.append(torch.from_numpy((image * 255.0 + 0.5).astype(np.uint8)).permute(2, 0, 1))
        coverage.append(torch.from_numpy(covered))
        asked.append(labels(scene, caption.said))
        shown.append(labels(scene))
    return Prompts(
        tuple(scenes),
        tuple(captions),
        torch.stack(drawn),
        torch.stack(coverage),
        torch.tensor(asked),
        torch.tensor(shown),
        first,
    )
