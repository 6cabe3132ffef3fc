"""Train a prompt head from an attribute scorer's values of both models' images of the same prompts and seeds.

The discriminator's network is frozen, so that features are computed once and training takes seconds. It is
deterministic by its seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.discriminators.prompt_heads import HeadNetwork, HeadShape

FOLDS = 8
CALIBRATING = (6, 7)  # are excluded from training
HIDDEN_WIDTH = 8


@dataclass(frozen=True)
class HeadPlan:
    """Set the training; `weight_decay` is large, since there are fewer images than weights."""

    epochs: int = 24
    batch: int = 64
    peak_rate: float = 2.0e-3
    weight_decay: float = 0.3
    seed: int = 0


@dataclass(frozen=True)
class HeadData:
    """Hold light images' pooled features (n, width), their prompts' unit embeddings (n, width), and whether the scorer
    rates them as good as heavy's, bool (n,)."""

    features: Tensor
    prompts: Tensor
    as_good: Tensor

    def rows(self, chosen: Tensor) -> HeadData:
        return HeadData(self.features[chosen], self.prompts[chosen], self.as_good[chosen])

    def fold(self, *, calibrating: bool) -> HeadData:
        """Return the calibration's fold, or the rest."""
        kept = torch.isin(torch.arange(len(self.as_good)) % FOLDS, torch.tensor(CALIBRATING))
        return self.rows(kept if calibrating else ~kept)


def train_head(data: HeadData, plan: HeadPlan = HeadPlan(), hidden_width: int = HIDDEN_WIDTH) -> HeadNetwork:
    """Return the head that separates as-good images from others, by image and prompt and by the prompt only."""
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        network = HeadNetwork(HeadShape(data.features.shape[1], data.prompts.shape[1], hidden_width))
        optimiser = torch.optim.AdamW(network.parameters(), plan.peak_rate, weight_decay=plan.weight_decay)
        network.train()
        for epoch in range(plan.epochs):
            for group in optimiser.param_groups:
                group["lr"] = plan.peak_rate * (1.0 - epoch / plan.epochs)
            for chosen in torch.randperm(len(data.as_good)).split(plan.batch):
                optimiser.zero_grad()
                loss(network, data.rows(chosen)).backward()
                optimiser.step()
    return network.eval()


def loss(network: HeadNetwork, data: HeadData) -> Tensor:
    """Return the loss of both answers, each separately."""
    wanted = data.as_good.float()
    together = functional.binary_cross_entropy_with_logits(network(data.features, data.prompts), wanted)
    return together + functional.binary_cross_entropy_with_logits(network.foresee(data.prompts), wanted)
