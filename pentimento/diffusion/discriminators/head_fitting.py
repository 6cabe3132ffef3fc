"""Train and calibrate a prompt head from a scorer's values of both models' images of the same prompts.

The discriminator's network is frozen, so that features are computed once and training takes seconds. It is
deterministic by its seed. Rows have weights, so that a biased sample stands for all prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional

from pentimento.diffusion.discriminators.calibration import fit_calibration
from pentimento.diffusion.discriminators.prompt_heads import HeadNetwork, HeadRecord, HeadShape
from pentimento.profiles.rules import share_is_surely

HIDDEN_WIDTH = 8
# Share of the rows, of normalised features.
RIDGE = 1.0e-2
# Allowed error for prompts that are hard or easy without an image.
SURE = 0.05
POINTS = 51
# Share of the heavy model's quality that the recommended threshold keeps.
KEPT = 0.95


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
    """Hold light images' pooled features (n, width), their prompts' unit embeddings (n, width), the scorer's values of
    light's and heavy's image of each prompt, (n,), and the rows' weights (n,), equal ones without any."""

    features: Tensor
    prompts: Tensor
    light: Tensor
    heavy: Tensor
    given_weights: Tensor | None = field(default=None)

    @property
    def weights(self) -> Tensor:
        """Return the rows' weights (n,), 1 on average."""
        if self.given_weights is None:
            return torch.ones(len(self.light))
        return self.given_weights / self.given_weights.mean()

    @property
    def as_good(self) -> Tensor:
        """Return whether light's image is as good as heavy's, bool (n,)."""
        return self.light >= self.heavy

    def rows(self, chosen: Tensor) -> "HeadData":
        """Return some of the rows, bool (n,)."""
        weights = None if self.given_weights is None else self.given_weights[chosen]
        return HeadData(self.features[chosen], self.prompts[chosen], self.light[chosen], self.heavy[chosen], weights)


@dataclass(frozen=True)
class CaptionedImages:
    """Hold pooled features (n, width) of images that show their captions, and the captions' unit embeddings."""

    features: Tensor
    captions: Tensor


def train_head(data: HeadData, shown: CaptionedImages, plan: HeadPlan = HeadPlan()) -> HeadNetwork:
    """Return a head that separates as-good images from others by the prompt only, and reads embeddings from features as
    `shown` has them."""
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        network = HeadNetwork(HeadShape(data.features.shape[1], data.prompts.shape[1], HIDDEN_WIDTH))
        fit_reading(network, shown)
        learnt = [*network.before.parameters(), *network.foreseen.parameters()]
        optimiser = torch.optim.AdamW(learnt, plan.peak_rate, weight_decay=plan.weight_decay)
        wanted, weights = data.as_good.float(), data.weights.float()
        network.train()
        for epoch in range(plan.epochs):
            for group in optimiser.param_groups:
                group["lr"] = plan.peak_rate * (1.0 - epoch / plan.epochs)
            for chosen in torch.randperm(len(wanted)).split(plan.batch):
                optimiser.zero_grad()
                found = network.foresee(data.prompts[chosen])
                functional.binary_cross_entropy_with_logits(found, wanted[chosen], weights[chosen]).backward()
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
        found = rows @ weights
        value = functional.binary_cross_entropy_with_logits(found, kept.as_good.double(), kept.weights.double())
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


@torch.no_grad()
def calibrated(network: HeadNetwork, data: HeadData, record: HeadRecord) -> HeadRecord:
    """Return the record with Platt's lines of both answers, the recommended threshold, the bounds of sure prompts, and
    f(t) of the images. Raises ValueError if no image is as good, or all are."""
    found = network(data.features, data.prompts), network.foresee(data.prompts)
    lines = [fit_calibration(logits, data.as_good, data.weights) for logits in found]
    confidences, foreseen = (line.confidence(logits) for line, logits in zip(lines, found, strict=True))
    thresholds = [index / (POINTS - 1) for index in range(POINTS)]
    bounded = replace(
        record,
        slope=lines[0].slope,
        intercept=lines[0].intercept,
        prompt_slope=lines[1].slope,
        prompt_intercept=lines[1].intercept,
        threshold=next(at for at in thresholds if at == 1.0 or kept_quality(confidences > at, data) >= KEPT),
        bounds=sure_bounds(confidences, foreseen, thresholds, data.weights),
    )
    return with_deferral(bounded, confidences, foreseen, data.weights)


def with_deferral(
    record: HeadRecord, confidences: Tensor, foreseen: Tensor, weights: Tensor | None = None
) -> HeadRecord:
    """Return the record with f(t) of light images: the share that a service defers at each threshold of the bounds, by
    the prompt where that is sure, else by the image.

    `confidences` and `foreseen`, (n,) each, are the head's probabilities by image and prompt, and by the prompt. No
    labels are needed: f(t) may be of more images than the calibration has.
    """
    rows = torch.ones(len(confidences)) if weights is None else weights
    deferred = (
        (at, (foreseen < hard_below) | ((foreseen <= easy_above) & (confidences <= at)))
        for at, hard_below, easy_above in record.bounds
    )
    return replace(record, deferral=tuple((at, _share(each, rows)) for at, each in deferred))


def kept_quality(accepted: Tensor, data: HeadData) -> float:
    """Return the scorer's mean value of the served images ÷ heavy's, if these light images are accepted."""
    served, weights = torch.where(accepted, data.light, data.heavy).double(), data.weights.double()
    return float((weights * served).mean() / (weights * data.heavy.double()).mean())


def _share(rows: Tensor, weights: Tensor) -> float:
    return min(float((rows.double() * weights.double()).sum() / weights.double().sum()), 1.0)


def sure_bounds(
    confidences: Tensor, foreseen: Tensor, thresholds: Sequence[float], weights: Tensor | None = None
) -> tuple[tuple[float, ...], ...]:
    """Return points (threshold, hard_below, easy_above) of prompts' probabilities `foreseen` (n,).

    By the lower bound of the share, at least 1 - SURE of the images of prompts beyond a bound are deferred or accepted.
    0 and 1: no prompt is sure."""
    ordered = foreseen.sort()
    rows = (torch.ones(len(foreseen)) if weights is None else weights).double()[ordered.indices]
    found = []
    for at in thresholds:
        accepted = (confidences > at)[ordered.indices]
        hard = _sure_count(~accepted, rows)
        easy = _sure_count(accepted.flip(0), rows.flip(0))
        hard_below = float(ordered.values[hard - 1]) if hard else 0.0
        easy_above = float(ordered.values[len(accepted) - easy]) if easy else 1.0
        found.append((at, hard_below, easy_above))
    # Hard prompts stay hard at higher thresholds, easy ones easy at lower thresholds.
    hard_bounds = torch.tensor([hard for _, hard, _ in found], dtype=torch.float64).cummax(0).values.tolist()
    easy_ends = torch.tensor([each for _, _, each in found], dtype=torch.float64)
    easy_bounds = easy_ends.flip(0).cummin(0).values.flip(0).tolist()
    bounds = zip(thresholds, hard_bounds, easy_bounds, strict=True)
    return tuple((at, hard_below, max(hard_below, easy_above)) for at, hard_below, easy_above in bounds)


def _sure_count(right: Tensor, weights: Tensor) -> int:
    """Return how many of the first entries, bool (n,), are surely right. Weighted entries count by their
    effective number (Kish): the square of the sum of weights ÷ the sum of their squares."""
    total, kept = weights.cumsum(0), (weights * right).cumsum(0)
    effective = total**2 / (weights**2).cumsum(0)
    # Rounded against the entries: fewer in all, more that are wrong.
    counts = (effective + 1e-6).floor().long()
    wrong = ((1.0 - kept / total) * effective - 1e-6).ceil().long().clamp(min=0)
    pairs = enumerate(zip(counts.tolist(), wrong.tolist(), strict=True), 1)
    return max((n for n, (count, bad) in pairs if share_is_surely(count - bad, count, 1.0 - SURE)), default=0)
