"""Read the calibrated confidence of a classifier of transformers.

A margin is a classifier's logit of 'real' less that of 'generated'; its sigmoid is the softmax of 'real'.
"""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pentimento.diffusion.discriminators.calibration import Calibration
from pentimento.domain.errors import FailedPrecondition

CALIBRATION = "pentimento_calibration"  # key of a model's configuration
BATCH = 256


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
