"""Train the network below a prompt head: one of torchvision's EfficientNets.

It separates real images from generated ones (DiffServe, section 3.2), and it matches images with their prompts'
embeddings, as matching-aware discriminators do (Reed et al., 2016). Without the second task its features hardly say
what an image shows, and a head would learn nothing from an image that the prompt does not tell. The projection to
embeddings is dropped: the head fits its own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pentimento.diffusion.discriminators.torchvision_networks import NARROW

TEMPERATURE = 0.05
SHIFT_SHARE = 1 / 20
WARMUP_SHARE = 0.05
LAST_CHANNEL = 448
_KEYS = ("block", "expand_ratio", "kernel", "stride", "input_channels", "out_channels", "num_layers")
STAGES: tuple[dict[str, Any], ...] = tuple(
    dict(zip(_KEYS, stage, strict=True))
    for stage in (
        ("fused", 1, 3, 1, 16, 16, 1),
        ("fused", 4, 3, 2, 16, 24, 2),
        ("fused", 4, 3, 2, 24, 48, 2),
        ("inverted", 4, 3, 2, 48, 80, 2),
        ("inverted", 4, 3, 1, 80, 112, 2),
    )
)
# The zoo's narrow network, as its keys of the configuration.
NARROW_ARCHITECTURE: dict[str, object] = {"architecture": NARROW, "stages": list(STAGES), "last_channel": LAST_CHANNEL}


class MatchingNetwork(nn.Module):
    """A network of torchvision's, with a projection of its features to prompts' embeddings."""

    def __init__(self, network: Any, embedding_width: int) -> None:
        super().__init__()
        self.network = network
        self.projection = nn.Linear(network.classifier[-1].in_features, embedding_width)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (n, labels) and embeddings (n, embedding_width) of pixels (n, 3, size, size) in -1..1."""
        features = self.network.avgpool(self.network.features(pixels)).flatten(1)
        return self.network.classifier(features), self.projection(features)


@dataclass(frozen=True)
class NetworkPlan:
    """Set the training: batches, the largest learning rate, and the seed."""

    steps: int = 600
    batch: int = 64
    peak_rate: float = 2.0e-3
    weight_decay: float = 0.05
    seed: int = 0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: a linear rise, then a cosine to 0."""
        rise = max(round(self.steps * WARMUP_SHARE), 1)
        if step < rise:
            return self.peak_rate * (step + 1) / rise
        return self.peak_rate * 0.5 * (1.0 + math.cos(math.pi * (step - rise) / max(self.steps - rise, 1)))


@dataclass(frozen=True)
class PairImages:
    """Hold uint8 images (n, 3, size, size) of both models, and their prompts' unit embeddings (n, width)."""

    light: Tensor
    heavy: Tensor
    prompts: Tensor


def train_matching(
    model: MatchingNetwork,
    pairs: PairImages,
    plan: NetworkPlan,
    device: torch.device,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> nn.Module:
    """Train the model so that heavy images are real and light ones generated, and that images match their own prompts;
    return its network, on the CPU. `report` gets each step and its loss."""
    generator = torch.Generator().manual_seed(plan.seed)
    prompts, numbers = torch.unique(pairs.prompts, dim=0, return_inverse=True)
    model.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimiser = torch.optim.AdamW(model.parameters(), plan.peak_rate, weight_decay=plan.weight_decay)
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        for step in range(plan.steps):
            for group in optimiser.param_groups:
                group["lr"] = plan.rate(step)
            rows = torch.randint(len(pairs.light), (max(plan.batch // 2, 1),), generator=generator)
            images = torch.cat([pairs.heavy[rows], pairs.light[rows]])
            pixels = as_pixels(shifted(images, generator)).to(device, memory_format=torch.channels_last)
            loss = matching_loss(model, pixels, prompts.to(device), numbers[rows].to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            report(step, float(loss.detach()))
    network: nn.Module = model.network
    return network.cpu().eval()


def matching_loss(model: MatchingNetwork, pixels: Tensor, prompts: Tensor, own: Tensor) -> Tensor:
    """Return the loss of pixels (2n, 3, size, size), n heavy images and the light ones of the same requests; `own` (n,)
    numbers each request's prompt among `prompts` (m, width)."""
    logits, embeddings = model(pixels)
    wanted = (torch.arange(len(logits), device=logits.device) < len(own)).long()
    cosines = functional.normalize(embeddings[: len(own)], dim=1) @ prompts.T
    return functional.cross_entropy(logits, wanted) + functional.cross_entropy(cosines / TEMPERATURE, own)


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift images by up to SHIFT_SHARE of their side, so that none is learnt by heart."""
    most = max(round(images.shape[-1] * SHIFT_SHARE), 1)
    down, across = torch.randint(2 * most + 1, (2,), generator=generator).tolist()
    wide = functional.pad(images.float(), (most,) * 4, mode="replicate")
    return wide[..., down : down + images.shape[-2], across : across + images.shape[-1]]


def as_pixels(images: Tensor) -> Tensor:
    """Convert values of 0..255 to floats in -1..1."""
    return images.float() / 127.5 - 1.0


@torch.no_grad()
def features_of(network: Any, images: Tensor, device: torch.device, batch: int = 64) -> Tensor:
    """Return the pooled features (n, width) of uint8 images, on the CPU."""
    network = network.to(device).eval()
    parts = (as_pixels(part).to(device, memory_format=torch.channels_last) for part in images.split(batch))
    found = torch.cat([network.avgpool(network.features(part)).flatten(1).cpu() for part in parts])
    network.cpu()
    return found
