"""The autoencoder: 32 px pictures to 8x8 latents of 8 channels of about unit variance, and back."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderTiny
from torch import Tensor

from zoo.dataset import TRAIN_COUNT, TRAIN_SEED, as_pixels, cached_drawings
from zoo.tokenizer import load_tokenizer
from zoo.training import Plan, device, half_precision

PLAN = Plan(steps=2400, peak_rate=1.5e-3, ema_decay=0.998)
LATENT_CHANNELS = 8
BATCH = 24
FOREGROUND_WEIGHT = 4.0
LATENT_NOISE = 0.05


def make_autoencoder() -> AutoencoderTiny:
    return AutoencoderTiny(
        encoder_block_out_channels=(48, 48, 48),
        decoder_block_out_channels=(48, 48, 48),
        num_encoder_blocks=(0, 1, 2),
        num_decoder_blocks=(3, 2, 1),
        latent_channels=LATENT_CHANNELS,
        scaling_factor=1.0,
    )


class AutoencoderPart:
    name = "autoencoder"

    def __init__(self, work: Path, seed: int = 0, count: int = TRAIN_COUNT, batch: int = BATCH) -> None:
        torch.manual_seed(seed)
        self.module = make_autoencoder().to(device(), memory_format=torch.channels_last)
        self.batch = batch
        self.drawings = cached_drawings(work, TRAIN_SEED, count, load_tokenizer(work / "tokenizer"))

    def loss(self, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        rows = torch.randint(len(self.drawings), (self.batch,), generator=generator)
        pixels = as_pixels(self.drawings.images[rows]).to(device())
        weight = 1.0 + FOREGROUND_WEIGHT * (self.drawings.coverage[rows] > 0).float().to(device())
        weight = (weight / weight.mean())[:, None]
        with half_precision():
            latents = self.module.encoder(pixels.to(memory_format=torch.channels_last)).float()
            noise = torch.randn(latents.shape, generator=generator).to(latents)
            rebuilt = self.module.decoder(latents + LATENT_NOISE * noise).float()
        error = rebuilt - pixels
        squared = (weight * error.square()).mean()
        absolute = (weight * error.abs()).mean()
        # Whitens each channel, so that the stock pipeline's scaling factor is 1.
        spread = (latents.std(dim=(0, 2, 3)) - 1.0).square().mean() + latents.mean(dim=(0, 2, 3)).square().mean()
        figures = {
            "psnr": float(10.0 * torch.log10(4.0 / error.detach().square().mean())),
            "spread": float(spread.detach()),
        }
        return squared + 0.1 * absolute + 0.01 * spread, figures


@torch.no_grad()
def encode_all(autoencoder: AutoencoderTiny, images: Tensor, batch: int = 256) -> Tensor:
    where = next(autoencoder.parameters()).device
    chunks = [autoencoder.encoder(as_pixels(part).to(where)).cpu() for part in images.split(batch)]
    return torch.cat(chunks)


def psnr(first: Tensor, second: Tensor, weight: Tensor) -> float:
    """Peak signal to noise over the pixels that count, for pictures in -1..1."""
    squared = (first - second).square().mean(dim=1)
    mean = (squared * weight).sum() / weight.sum()
    return float(10.0 * torch.log10(4.0 / mean))
