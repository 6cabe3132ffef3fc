"""Train the finder, which locates an image's objects; on drawings only, sharing no weight with the models.

It complements the attribute scorer, which names objects without their places.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.devices import device, half_precision
from zoo.drawing.conditions import place_iou
from zoo.drawing.dataset import JUDGE_COUNT, JUDGE_SEED, as_pixels, cached_drawings
from zoo.drawing.tokenizer import load_tokenizer
from zoo.train.augmentation import softened
from zoo.train.loop import TrainingPlan

PLAN = TrainingPlan(steps=800, peak_rate=4.0e-3, warmup=30, ema_decay=0.98, checkpoint_every=400)
BATCH = 32
PIXEL_NOISE = 0.1
DILATIONS = (1, 2, 4, 8, 4, 2, 1)


class Finder(nn.Module):
    """Map images (n, 3, h, w) in -1..1 to logits of coverage (n, h, w); h and w are even."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.inward = nn.Conv2d(3, width, 4, 2, 1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, width), nn.ReLU(), nn.Conv2d(width, width, 3, 1, d, d)) for d in DILATIONS
        )
        self.outward = nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        features = self.inward(pixels)
        for block in self.body:
            features = features + block(features)
        return functional.pixel_shuffle(self.outward(features), 2)[:, 0].float()


class FinderPart:
    name = "finder"

    def __init__(self, work: Path, seed: int = 0, count: int = JUDGE_COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed + 78)
        self.module = Finder().to(device())
        self.batch = batch
        self.drawings = cached_drawings(work, JUDGE_SEED, count, load_tokenizer(work / "tokenizer"), held_out=None)

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Train on drawings blurred and noisy to random degrees, as generated images are."""
        rows = torch.randint(len(self.drawings), (self.batch,), generator=generator)
        blur, noise = torch.rand((2, self.batch, 1, 1, 1), generator=generator)
        pixels = softened(as_pixels(self.drawings.images[rows]), blur)
        pixels = pixels + PIXEL_NOISE * noise * torch.randn(pixels.shape, generator=generator)
        wanted = self.drawings.coverage[rows].to(device()) / 255.0
        with half_precision():
            found = self.module(pixels.to(device()))
        loss = functional.binary_cross_entropy_with_logits(found, wanted)
        return loss, {"iou": float(place_iou(found.detach().sigmoid(), wanted).mean())}


@torch.no_grad()
def find_things(finder: Finder, pictures: Tensor, batch: int = 256) -> Tensor:
    """Return the finder's confidence in an object at each pixel, (n, h, w) in 0..1, of images (n, 3, h, w) in 0..1."""
    where = next(finder.parameters()).device
    return torch.cat([finder(part.to(where) * 2.0 - 1.0).sigmoid().cpu() for part in pictures.split(batch)])
