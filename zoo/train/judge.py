"""Train the attribute scorer, which reads attributes from an image; on drawings only, sharing no weight with the
models.

It has seen every combination, also the held-out ones: attributes that it does not see are missing from the image.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.devices import device, half_precision
from zoo.drawing.captions import ATTRIBUTES, UNSAID
from zoo.drawing.dataset import JUDGE_COUNT, JUDGE_SEED, as_pixels, cached_drawings
from zoo.drawing.tokenizer import load_tokenizer
from zoo.train.augmentation import noisy
from zoo.train.loop import TrainingPlan

PLAN = TrainingPlan(steps=2800, peak_rate=1.5e-3, ema_decay=0.99, weight_decay=0.02, checkpoint_every=500)
BATCH = 96
PIXEL_NOISE = 0.15


class AttributeReader(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        channels = (3, width, 2 * width, 3 * width, 4 * width)
        stages: list[nn.Module] = []
        for number, (before, after) in enumerate(pairwise(channels)):
            kernel = 5 if number == 0 else 3
            stages += [nn.Conv2d(before, after, kernel, 2, kernel // 2), nn.GroupNorm(8, after), nn.ReLU()]
            stages += [nn.Conv2d(after, after, 3, 1, 1), nn.GroupNorm(8, after), nn.ReLU()]
        self.body = nn.Sequential(*stages, nn.Flatten(), nn.Linear(4 * width * 16, 256), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(256, len(values)) for name, values in ATTRIBUTES.items()})

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        features = self.body(pixels)
        return {name: head(features).float() for name, head in self.heads.items()}


class AttributeReaderPart:
    name = "judge"

    def __init__(self, work: Path, seed: int = 0, count: int = JUDGE_COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed + 77)
        self.module = AttributeReader().to(device())
        self.batch = batch
        self.drawings = cached_drawings(work, JUDGE_SEED, count, load_tokenizer(work / "tokenizer"), held_out=None)

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        rows = torch.randint(len(self.drawings), (self.batch,), generator=generator)
        pixels = noisy(as_pixels(self.drawings.images[rows]), PIXEL_NOISE, generator).to(device())
        with half_precision():
            found = self.module(pixels)
        wanted = self.drawings.image_labels[rows].to(device())
        losses, figures = [], {}
        for column, (name, logits) in enumerate(found.items()):
            target = wanted[:, column]
            said = target != UNSAID
            if bool(said.any()):
                losses.append(functional.cross_entropy(logits[said], target[said]))
                figures[name] = float((logits[said].argmax(dim=1) == target[said]).float().mean())
        return torch.stack(losses).mean(), {name: figures[name] for name in ("shape", "style") if name in figures}
