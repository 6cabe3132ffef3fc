"""Measure and calibrate a confidence: its ranking, its error, and the line that corrects it."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

BINS = 10
RESAMPLES = 1_000
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Hold Platt's line (1999): the confidence is sigmoid(slope * margin + intercept). The default is the plain
    softmax."""

    slope: float = 1.0
    intercept: float = 0.0

    def confidence(self, margins: Tensor) -> Tensor:
        return torch.sigmoid(self.slope * margins.double() + self.intercept)


def fit_calibration(margins: Tensor, real: Tensor, weights: Tensor) -> Calibration:
    """Return the line of least log loss over margins (n,), which are `real` (n,) or not, with `weights` (n,).

    Targets are moved slightly away from 0 and 1, by Platt's rule, so that separable classes have a line too. Raises
    ValueError if one class is missing.
    """
    positives, negatives = int(real.sum()), int((~real).sum())
    if positives == 0 or negatives == 0:
        raise ValueError(f"calibration needs both classes: {positives} real, {negatives} generated images")
    wanted = torch.where(real, (positives + 1.0) / (positives + 2.0), 1.0 / (negatives + 2.0)).double()
    margins, weights = margins.double(), weights.double() / weights.sum()
    line = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([line], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = line[0] * margins + line[1]
        value = functional.binary_cross_entropy_with_logits(logits, wanted, weights, reduction="sum")
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(loss)
    slope, intercept = line.detach().tolist()
    return Calibration(slope, intercept)


def calibration_error(confidence: Tensor, real: Tensor, weights: Tensor, bins: int = BINS) -> float:
    """Return the expected calibration error over equal bins: the mean gap of confidence and the share of real."""
    where = (confidence * bins).long().clamp(max=bins - 1)
    gaps = torch.zeros(bins, dtype=torch.float64)
    gaps.index_add_(0, where, weights.double() * (confidence.double() - real.double()))
    return float(gaps.abs().sum() / weights.sum())


def auroc(higher: Tensor, lower: Tensor) -> float:
    """Return the share of pairs where one of `higher` (n,) has a larger score than one of `lower` (m,); ties count
    half."""
    ordered = lower.double().sort().values
    below = torch.searchsorted(ordered, higher.double(), right=False)
    up_to = torch.searchsorted(ordered, higher.double(), right=True)
    return float((below + up_to).double().mean() / (2 * len(lower)))


def resampling_weights(count: int, resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """Return (1 + resamples, count): first every row once, then how often each was drawn."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(count, np.full(count, 1.0 / count), size=resamples)
    return np.concatenate([np.ones((1, count)), drawn]).astype(np.float64)


def aurocs(confidence: Array, as_good: NDArray[np.bool_], weights: Array) -> Array:
    """Return by resample the share of pairs, one as good and one not, where the former has the larger confidence;
    ties count half."""
    _, groups = np.unique(confidence, return_inverse=True)
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    good = np.add.reduceat((weights * as_good)[:, order], starts, axis=1)
    bad = np.add.reduceat((weights * ~as_good)[:, order], starts, axis=1)
    below = bad.cumsum(axis=1) - bad
    found: Array = (good * (below + bad / 2.0)).sum(axis=1) / (good.sum(axis=1) * bad.sum(axis=1))
    return found
