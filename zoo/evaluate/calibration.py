"""Measure and calibrate a confidence: its ranking, its error, and the line that corrects it.

A margin is a classifier's logit of 'real' less that of 'generated'; its sigmoid is the softmax of 'real'.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from pentimento.domain.errors import FailedPrecondition

CALIBRATION = "pentimento_calibration"  # key of a model's configuration
BATCH = 256
BINS = 10


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

    Targets are moved slightly away from 0 and 1, by Platt's rule, so that separable classes have a line too.
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


def read_calibration(model: PreTrainedModel) -> Calibration:
    """Return the configuration's line, or the plain softmax. Raises FailedPrecondition for invalid values."""
    record = getattr(model.config, CALIBRATION, None) or {}
    values = {}
    for name, default in asdict(Calibration()).items():
        value = record.get(name, default) if isinstance(record, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise FailedPrecondition(
                "BAD_CALIBRATION", f"{CALIBRATION}.{name}: expected a finite number, not {value!r}"
            )
        values[name] = float(value)
    return Calibration(**values)


@torch.no_grad()
def margins(model: PreTrainedModel, pixels: Tensor) -> Tensor:
    """Return log odds (n,) of 'real', by the uncalibrated classifier, of pixels (n, 3, height, width) in -1..1. Raises
    FailedPrecondition for a classifier without the label 'real'."""
    numbers = [number for label, number in model.config.label2id.items() if label.lower() == "real"]
    if len(numbers) != 1:
        labels = ", ".join(sorted(model.config.label2id))
        raise FailedPrecondition("NO_REAL_LABEL", f"label2id: expected one label 'real', found {labels}")
    logits = torch.cat([model(pixel_values=part).logits for part in pixels.split(BATCH)]).double()
    others = logits.clone()
    others[:, numbers[0]] = -torch.inf
    return logits[:, numbers[0]] - others.logsumexp(dim=1)


def confidence(model: PreTrainedModel, pixels: Tensor) -> Tensor:
    """Return the calibrated probability (n,) that an image is real, of pixels (n, 3, height, width) in -1..1."""
    return read_calibration(model).confidence(margins(model, pixels))


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
