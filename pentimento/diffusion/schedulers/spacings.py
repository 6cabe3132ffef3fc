"""Space the noise levels of a schedule, and find the training timesteps of given levels."""

import math

import numpy as np
import numpy.typing as npt

from pentimento.domain.generation import SigmaSpacing

Levels = npt.NDArray[np.float64]

_RHO = 7.0
_BETA = 0.6


def spaced_levels(spacing: SigmaSpacing, largest: float, smallest: float, count: int) -> Levels:
    """Return `count` levels, descending from `largest` to `smallest`: as in Karras et al. 2022 (equation 5), evenly in
    their logarithms, or by the quantiles of a beta distribution ("Beta Sampling is All You Need", Lee et al. 2024)."""
    places = np.linspace(0, 1, count)
    levels: Levels
    match spacing:
        case SigmaSpacing.EXPONENTIAL:
            levels = np.exp(np.linspace(math.log(largest), math.log(smallest), count))
        case SigmaSpacing.BETA:
            levels = smallest + _beta_quantiles(1 - places) * (largest - smallest)
        case _:
            low, high = smallest ** (1 / _RHO), largest ** (1 / _RHO)
            levels = (high + places * (low - high)) ** _RHO
    return levels


def _beta_quantiles(shares: Levels) -> Levels:
    from scipy.special import betaincinv

    quantiles: Levels = betaincinv(_BETA, _BETA, shares)
    return quantiles


def timesteps_at(levels: Levels, trained_sigmas: npt.NDArray[np.float32]) -> Levels:
    """Return timesteps between the two trained levels around each level, linear in their logarithms; unrounded."""
    logs = np.log(trained_sigmas)
    wanted = np.array([np.log(max(level, 1e-10)) for level in levels])  # one by one: the bits of diffusers
    lower = (np.searchsorted(logs, wanted, side="right") - 1).clip(0, len(logs) - 2)
    low, high = logs[lower], logs[lower + 1]
    weight = ((low - wanted) / (low - high)).clip(0, 1)
    timesteps: Levels = (1 - weight) * lower + weight * (lower + 1)
    return timesteps
