"""Estimate figures with confidence intervals by a bootstrap that resamples prompts, and seeds within each prompt.

Samples are arrays (prompts, seeds, ...). Related arrays are passed together: one draw picks the same prompts and seeds
out of every array, so that a comparison stays paired in each resample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CONFIDENCE = 0.95
RESAMPLES = 2_000


@dataclass(frozen=True)
class Estimate:
    """Hold a figure and the bounds of its interval."""

    value: float
    low: float
    high: float


def estimate(
    statistic: Callable[..., float],
    *samples: Array,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = 0,
    within: bool = True,
) -> Estimate:
    """Return the percentile bootstrap (Efron 1979) of `statistic(*samples)`, in two stages (Davison and Hinkley 1997,
    3.8).

    An array with one seed counts the same for each of the other arrays' seeds (a drawing has none). Resampling seeds as
    well makes the interval slightly too wide rather than too narrow; without `within` a drawn prompt keeps all columns,
    for columns that differ in more than chance.
    """
    prompts, seeds = len(samples[0]), max(array.shape[1] for array in samples)
    whole = [np.broadcast_to(array, (prompts, seeds, *array.shape[2:])) for array in samples]
    rng = np.random.default_rng(seed)
    drawn = np.empty(resamples)
    for number in range(resamples):
        rows = rng.integers(prompts, size=(prompts, 1))
        columns = rng.integers(seeds, size=(prompts, seeds)) if within else np.arange(seeds)[None]
        drawn[number] = statistic(*(array[rows, columns] for array in whole))
    tail = (1.0 - confidence) / 2.0
    low, high = np.nanquantile(drawn, (tail, 1.0 - tail))  # a draw may have nothing for a ratio
    return Estimate(float(statistic(*whole)), float(low), float(high))


def mean(values: Array) -> float:
    return float(values.mean())


def mean_difference(values: Array, others: Array) -> float:
    return float(values.mean() - others.mean())


def ratio(values: Array, others: Array) -> float:
    """Return the ratio of the means, equal to that of the sums; a share if `others` counts trials. NaN without any."""
    whole = float(others.sum())
    return float(values.sum()) / whole if whole else float("nan")
