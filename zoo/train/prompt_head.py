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
RIDGE = 1.0e-2  # share of the rows, of normalised features


@dataclass(frozen=True)
class HeadPlan:
    """Set the training; `weight_decay` is large, since there are fewer images than weights."""

    epochs: int = 24
    batch: int = 64
    peak_rate: float = 2.0e-3
    weight_decay: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class HeadData:
    """Hold light images' pooled features (n, width), their prompts' unit embeddings (n, width), and the scorer's
    values of light's and heavy's image of each prompt, (n,)."""

    features: Tensor
    prompts: Tensor
    light: Tensor
    heavy: Tensor

    @property
    def as_good(self) -> Tensor:
        """Return whether light's image is as good as heavy's, bool (n,)."""
        return self.light >= self.heavy

    def rows(self, chosen: Tensor) -> HeadData:
        return HeadData(self.features[chosen], self.prompts[chosen], self.light[chosen], self.heavy[chosen])

    def fold(self, *, calibrating: bool) -> HeadData:
        """Return the calibration's fold, or the rest."""
        kept = is_calibrating(len(self.light))
        return self.rows(kept if calibrating else ~kept)


def is_calibrating(count: int) -> Tensor:
    """Return which of `count` scenes calibrate, bool (count,)."""
    return torch.isin(torch.arange(count) % FOLDS, torch.tensor(CALIBRATING))


@dataclass(frozen=True)
class CaptionedImages:
    """Hold pooled features (n, width) of images that show their captions, and the captions' unit embeddings."""

    features: Tensor
    captions: Tensor


def train_head(
    data: HeadData, shown: CaptionedImages, plan: HeadPlan = HeadPlan(), hidden_width: int = HIDDEN_WIDTH
) -> HeadNetwork:
    """Return a head that separates as-good images from others by the prompt only, and reads embeddings from features as
    `shown` has them."""
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        network = HeadNetwork(HeadShape(data.features.shape[1], data.prompts.shape[1], hidden_width))
        fit_reading(network, shown)
        learnt = [*network.before.parameters(), *network.foreseen.parameters()]
        optimiser = torch.optim.AdamW(learnt, plan.peak_rate, weight_decay=plan.weight_decay)
        wanted = data.as_good.float()
        network.train()
        for epoch in range(plan.epochs):
            for group in optimiser.param_groups:
                group["lr"] = plan.peak_rate * (1.0 - epoch / plan.epochs)
            for chosen in torch.randperm(len(wanted)).split(plan.batch):
                optimiser.zero_grad()
                found = network.foresee(data.prompts[chosen])
                functional.binary_cross_entropy_with_logits(found, wanted[chosen]).backward()
                optimiser.step()
    return network.eval()


def fit_agreement(network: HeadNetwork, kept: HeadData) -> None:
    """Set the weight of the image's part by logistic regression on prompts that were not trained on: on the others the
    prompt's part explains too much."""
    with torch.no_grad():
        prompt = network.foresee(kept.prompts)
        network.agreed.weight.fill_(1.0)
        image = network(kept.features, kept.prompts) - prompt
    rows = torch.stack([prompt, image, torch.ones(len(prompt))], dim=1).double()
    weights = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.binary_cross_entropy_with_logits(rows @ weights, kept.as_good.double())
        value.backward()
        return value

    optimiser.step(loss)
    by_prompt, by_image, _ = weights.detach().tolist()
    with torch.no_grad():
        network.agreed.weight.fill_(max(by_image / by_prompt, 0.0) if by_prompt > 0.0 else 0.0)


@torch.no_grad()
def fit_reading(network: HeadNetwork, shown: CaptionedImages) -> None:
    """Set the head's projection of features to embeddings by ridge regression, and exclude it from further training."""
    rows = network.norm(shown.features).double()
    rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)
    penalty = RIDGE * len(rows) * torch.eye(rows.shape[1], dtype=torch.float64)
    found = torch.linalg.solve(rows.T @ rows + penalty, rows.T @ shown.captions.double()).float()
    network.read.weight.copy_(found[:-1].T)
    network.read.bias.copy_(found[-1])
