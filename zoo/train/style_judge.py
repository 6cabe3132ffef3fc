"""Train the style scorer, which classifies an image's treatment, or none; on drawings only.

It sees every scene plain and in each treatment, so that the classes differ only in the treatment.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.devices import device, half_precision
from zoo.drawing.dataset import JUDGE_SEED, as_pixels, cached_drawings
from zoo.drawing.scenes import TREATMENTS
from zoo.drawing.tokenizer import load_tokenizer
from zoo.train.augmentation import noisy, softened
from zoo.train.judge import PIXEL_NOISE, AttributeReader
from zoo.train.loop import TrainingPlan

PLAN = TrainingPlan(steps=1200, peak_rate=2.0e-3, ema_decay=0.99, weight_decay=0.02)
CLASSES = ("none", *TREATMENTS)
COUNT = 3_000  # scenes, each drawn once for every class
BATCH = 64
WIDTH = 16


class StyleClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = AttributeReader(WIDTH).body
        self.head = nn.Linear(256, len(CLASSES))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.body(pixels)).float()


class StyleClassifierPart:
    name = "style-judge"

    def __init__(self, work: Path, seed: int = 0, count: int = COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed + 78)
        self.module = StyleClassifier().to(device())
        self.batch = batch
        tokenizer = load_tokenizer(work / "tokenizer")
        drawn = [cached_drawings(work, JUDGE_SEED, count, tokenizer, None, t) for t in (None, *TREATMENTS)]
        self.images = torch.stack([drawings.images for drawings in drawn])  # (classes, scenes, 3, size, size)

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        classes, scenes = self.images.shape[:2]
        wanted = torch.randint(classes, (self.batch,), generator=generator)
        pixels = as_pixels(self.images[wanted, torch.randint(scenes, (self.batch,), generator=generator)])
        # Generated images are noisier and softer than drawn ones: neither may count as a treatment, or hide one.
        soft = torch.rand((self.batch, 1, 1, 1), generator=generator)
        pixels = noisy(softened(pixels, soft), PIXEL_NOISE, generator).to(device())
        with half_precision():
            found = self.module(pixels)
        wanted = wanted.to(device())
        right = float((found.detach().argmax(dim=1) == wanted).float().mean())
        return functional.cross_entropy(found, wanted), {"right": right}


@torch.no_grad()
def style_scores(reader: StyleClassifier, pixels: Tensor) -> Tensor:
    """Return probabilities (n, classes) in the order of CLASSES, of images (n, 3, size, size) in -1..1."""
    return reader(pixels).softmax(dim=1)
