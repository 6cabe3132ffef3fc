"""Compute noise levels spaced as in Karras et al. 2022, equation 5, and their training timesteps."""

import numpy as np
import numpy.typing as npt

Levels = npt.NDArray[np.float64]

_RHO = 7.0


def karras_levels(largest: float, smallest: float, count: int) -> Levels:
    """Return `count` levels, descending from `largest` to `smallest`."""
    low, high = smallest ** (1 / _RHO), largest ** (1 / _RHO)
    levels: Levels = (high + np.linspace(0, 1, count) * (low - high)) ** _RHO
    return levels


def timesteps_at(levels: Levels, trained_sigmas: npt.NDArray[np.float32]) -> Levels:
    """Return timesteps between the two trained levels around each level, linear in their logarithms; unrounded."""
    logs = np.log(trained_sigmas)
    wanted = np.array([np.log(max(level, 1e-10)) for level in levels])  # one by one: the bits of diffusers
    lower = (np.searchsorted(logs, wanted, side="right") - 1).clip(0, len(logs) - 2)
    low, high = logs[lower], logs[lower + 1]
    weight = ((low - wanted) / (low - high)).clip(0, 1)
    timesteps: Levels = (1 - weight) * lower + weight * (lower + 1)
    return timesteps
