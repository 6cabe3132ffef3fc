"""Train the autoencoder: 64 px images to 16x16 latents of 8 channels of about unit variance, and back.

Half of its batches are crops around the objects, for detail; one image in eight is in an adapter's treatment.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderTiny
from torch import Tensor
from torch.nn import functional

from zoo.devices import device, half_precision
from zoo.drawing.dataset import TRAIN_COUNT, TRAIN_SEED, TREATED_COUNT, TREATED_SEED, as_pixels, cached_drawings
from zoo.drawing.scenes import IMAGE_SIZE, TREATMENTS
from zoo.drawing.tokenizer import load_tokenizer
from zoo.train.loop import TrainingPlan

PLAN = TrainingPlan(steps=3800, peak_rate=1.5e-3, cooldown=0.6, ema_decay=0.998, checkpoint_every=250)
LATENT_CHANNELS = 8
DOWNSCALE = 4
BATCH = 16
CROP, GRID = 32, 8  # pixels a side, and the grid of crops
TREATED = 0.125
FOREGROUND_WEIGHT = 4.0
LATENT_NOISE = 0.05


def make_autoencoder() -> AutoencoderTiny:
    return AutoencoderTiny(
        encoder_block_out_channels=(48, 48, 48),
        decoder_block_out_channels=(48, 48, 48),
        num_encoder_blocks=(0, 2, 2),
        num_decoder_blocks=(3, 2, 0),
        latent_channels=LATENT_CHANNELS,
        scaling_factor=1.0,
    )


class AutoencoderPart:
    name = "autoencoder"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed)
        self.module = make_autoencoder().to(device(), memory_format=torch.channels_last)
        self.batch = batch
        tokenizer = load_tokenizer(work / "tokenizer")
        plain = cached_drawings(work, TRAIN_SEED, count, tokenizer)
        treated_count = min(count, TREATED_COUNT)
        treated = [cached_drawings(work, TREATED_SEED, treated_count, tokenizer, treatment=t) for t in TREATMENTS]
        self.plain_count = len(plain)
        self.images = torch.cat([plain.images, *(d.images for d in treated)])
        self.coverage = torch.cat([plain.coverage, *(d.coverage for d in treated)])

    def _images(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return whole images, or the same number of pixels in crops around the objects."""
        crops = bool(torch.rand((), generator=generator) < 0.5)
        count = self.batch * (IMAGE_SIZE // CROP) ** 2 if crops else self.batch
        rows = torch.randint(self.plain_count, (count,), generator=generator)
        treated = torch.rand(count, generator=generator) < TREATED
        others = torch.randint(self.plain_count, len(self.images), (count,), generator=generator)
        rows = torch.where(treated, others, rows)
        images, coverage = self.images[rows], self.coverage[rows]
        if not crops:
            return images, coverage
        share = functional.avg_pool2d(coverage[:, None].float(), CROP, GRID).flatten(1)
        corners = torch.multinomial(share + 4.0, 1, generator=generator)[:, 0]
        side = (IMAGE_SIZE - CROP) // GRID + 1
        tops, lefts = (corners // side * GRID).tolist(), (corners % side * GRID).tolist()
        boxes = [
            (row, slice(top, top + CROP), slice(left, left + CROP))
            for row, (top, left) in enumerate(zip(tops, lefts, strict=True))
        ]
        cut = torch.stack([images[row, :, down, across] for row, down, across in boxes])
        return cut, torch.stack([coverage[box] for box in boxes])

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        images, coverage = self._images(generator)
        pixels = as_pixels(images).to(device())
        weight = 1.0 + FOREGROUND_WEIGHT * (coverage > 0).float().to(device())
        weight = (weight / weight.mean())[:, None]
        with half_precision():
            latents = self.module.encoder(pixels.to(memory_format=torch.channels_last)).float()
            noise = torch.randn(latents.shape, generator=generator).to(latents)
            rebuilt = self.module.decoder(latents + LATENT_NOISE * noise).float()
        error = rebuilt - pixels
        squared = (weight * error.square()).mean()
        absolute = (weight * error.abs()).mean()
        # whitens each channel, so that the stock pipeline's scaling factor is 1
        spread = (latents.std(dim=(0, 2, 3)) - 1.0).square().mean() + latents.mean(dim=(0, 2, 3)).square().mean()
        figures = {
            "psnr": _decibels(error),
            "foreground_psnr": _decibels(error.permute(0, 2, 3, 1)[coverage > 0]),
            "spread": float(spread.detach()),
        }
        return squared + 0.1 * absolute + 0.01 * spread, figures


def _decibels(error: Tensor) -> float:
    return float(10.0 * torch.log10(4.0 / error.detach().square().mean()))


@torch.no_grad()
def encode_all(autoencoder: AutoencoderTiny, images: Tensor, batch: int = 256) -> Tensor:
    where = next(autoencoder.parameters()).device
    chunks = [autoencoder.encoder(as_pixels(part).to(where)).cpu() for part in images.split(batch)]
    return torch.cat(chunks)


def psnr(first: Tensor, second: Tensor, weight: Tensor) -> float:
    """Return peak signal to noise over the weighted pixels, for images in -1..1."""
    squared = (first - second).square().mean(dim=1)
    mean = (squared * weight).sum() / weight.sum()
    return float(10.0 * torch.log10(4.0 / mean))
