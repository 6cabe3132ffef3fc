"""Tune the image tower further against the frozen text tower (locked-text tuning).

The text tower's states condition the denoisers, so that it stays unchanged after the dual encoder's training. With the
captions' features computed once, a step only runs the image tower and can use many captions as negatives.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.devices import device, half_precision
from zoo.drawing.captions import ATTRIBUTES, UNSAID
from zoo.drawing.dataset import TRAIN_COUNT, TRAIN_SEED, as_pixels, cached_drawings
from zoo.drawing.tokenizer import load_tokenizer
from zoo.train.augmentation import noisy
from zoo.train.dual_encoder import PIXEL_NOISE, TowersAndHeads
from zoo.train.loop import TrainingPlan, load_trained

PLAN = TrainingPlan(steps=2400, peak_rate=8.0e-4, cooldown=0.6, ema_decay=0.997, weight_decay=0.05)
BATCH = 96
OTHER_CAPTIONS = 416


class TrainedImageTower(nn.Module):
    """Map images (n, 3, 64, 64) in -1..1 to unit vectors, and to attributes read from the unscaled vectors."""

    def __init__(self, towers: TowersAndHeads) -> None:
        super().__init__()
        self.vision_model = towers.clip.vision_model
        self.visual_projection = towers.clip.visual_projection
        self.heads = towers.heads

    def forward(self, pixels: Tensor) -> Tensor:
        return self.visual_projection(self.vision_model(pixel_values=pixels).pooler_output)

    def attribute_loss(self, features: Tensor, wanted: Tensor) -> Tensor:
        losses = []
        for column, name in enumerate(ATTRIBUTES):
            target = wanted[:, column]
            if bool((target != UNSAID).any()):
                losses.append(functional.cross_entropy(self.heads[name](features), target, ignore_index=UNSAID))
        return torch.stack(losses).mean()


class ImageTowerPart:
    name = "image-tower"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        tokenizer = load_tokenizer(work / "tokenizer")
        towers = load_trained(TowersAndHeads(tokenizer), work / "dual-encoder").to(device())
        self.drawings = cached_drawings(work, TRAIN_SEED, count, tokenizer)
        self.texts = _text_features(towers, self.drawings.tokens)
        self.scale = float(towers.clip.logit_scale.exp().clamp(max=100.0))
        self.module = TrainedImageTower(towers).requires_grad_(True)
        self.batch = batch

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        rows = torch.randint(len(self.drawings), (self.batch,), generator=generator)
        others = torch.randint(len(self.drawings), (OTHER_CAPTIONS,), generator=generator)
        pixels = noisy(as_pixels(self.drawings.images[rows]), PIXEL_NOISE, generator).to(device())
        with half_precision():
            features = self.module(pixels).float()
        texts = self.texts[torch.cat([rows, others])].to(device())
        logits = self.scale * functional.normalize(features, dim=-1) @ texts.T
        own = torch.arange(self.batch, device=logits.device)
        to_text = functional.cross_entropy(logits, own)
        contrast = (to_text + functional.cross_entropy(logits[:, : self.batch].T, own)) / 2.0
        seen = self.module.attribute_loss(features, self.drawings.image_labels[rows].to(device()))
        first = float((logits.detach().argmax(dim=1) == own).float().mean())
        return contrast + seen, {"contrast": float(contrast.detach()), "seen": float(seen.detach()), "first": first}


@torch.no_grad()
def _text_features(towers: TowersAndHeads, tokens: Tensor, batch: int = 512) -> Tensor:
    chunks = [functional.normalize(towers.text(part.to(device())), dim=-1) for part in tokens.split(batch)]
    return torch.cat([chunk.cpu() for chunk in chunks])


def load_dual_encoder(work: Path) -> TowersAndHeads:
    """Return both towers for the export: the text tower of `dual-encoder`, the image tower of `image-tower`."""
    towers = load_trained(TowersAndHeads(load_tokenizer(work / "tokenizer")), work / "dual-encoder")
    load_trained(TrainedImageTower(towers), work / "image-tower")
    return towers
