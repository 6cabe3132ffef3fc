"""Compute the training noise schedule and its sampling timesteps, bit for bit as diffusers does (float32)."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import BetaSchedule, DiffusionConfig, TimestepSpacing

Timesteps = npt.NDArray[np.float64]

# Replaces the last alpha-bar of a zero-SNR schedule: 0 would make the first sigma infinite. float16's smallest value.
_SMALLEST_ALPHA = 2**-24


def cumulative_alphas(config: DiffusionConfig) -> Tensor:
    """Return alpha-bar of every training timestep: float32 of shape (num_train_timesteps,)."""
    betas = _betas(config)
    if config.rescale_betas_zero_snr:
        betas = _rescale_to_zero_terminal_snr(betas)
    return torch.cumprod(1.0 - betas, dim=0)


def positive_alphas(config: DiffusionConfig) -> Tensor:
    """Return alpha-bar for samplers that divide by it."""
    alphas = cumulative_alphas(config)
    if config.rescale_betas_zero_snr:
        alphas[-1] = _SMALLEST_ALPHA
    return alphas


def _betas(config: DiffusionConfig) -> Tensor:
    count = config.num_train_timesteps
    if config.trained_betas is not None:
        return torch.tensor(config.trained_betas, dtype=torch.float32)
    match config.beta_schedule:
        case BetaSchedule.LINEAR:
            return torch.linspace(config.beta_start, config.beta_end, count, dtype=torch.float32)
        case BetaSchedule.SCALED_LINEAR:
            return torch.linspace(config.beta_start**0.5, config.beta_end**0.5, count, dtype=torch.float32) ** 2
        case BetaSchedule.SQUARED_COSINE:
            return _squared_cosine_betas(count)


def _squared_cosine_betas(count: int, max_beta: float = 0.999) -> Tensor:
    """Return the betas of Nichol and Dhariwal 2021, equation 17."""

    def alpha_bar(fraction: float) -> float:
        return math.cos((fraction + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [min(1 - alpha_bar((i + 1) / count) / alpha_bar(i / count), max_beta) for i in range(count)]
    return torch.tensor(betas, dtype=torch.float32)


def _rescale_to_zero_terminal_snr(betas: Tensor) -> Tensor:
    """Rescale betas by algorithm 1 of Lin et al. 2023: the last alpha-bar becomes zero, the first is unchanged."""
    roots = torch.cumprod(1.0 - betas, dim=0).sqrt()
    first, last = roots[0].clone(), roots[-1].clone()
    roots = (roots - last) * (first / (first - last))
    squares = roots**2
    return 1 - torch.cat([squares[0:1], squares[1:] / squares[:-1]])


def spaced_timesteps(config: DiffusionConfig, step_count: int) -> Timesteps:
    """Return sampling timesteps, descending, unrounded only for `linspace`.

    Raises ValueError if they leave the training schedule.
    """
    trained = config.num_train_timesteps
    match config.timestep_spacing:
        case TimestepSpacing.LINSPACE:
            timesteps = np.linspace(0, trained - 1, step_count)[::-1]
        case TimestepSpacing.LEADING:
            timesteps = _leading(trained // step_count, step_count)[::-1] + config.steps_offset
        case TimestepSpacing.TRAILING:
            timesteps = _trailing(trained, step_count)
    return _checked(timesteps, trained)


def spaced_timesteps_between(config: DiffusionConfig, step_count: int) -> Timesteps:
    """Return the timesteps of a solver that counts both ends of each step: `step_count` + 1 points without the last.

    Raises ValueError if they leave the training schedule, or two are equal.
    """
    trained = config.num_train_timesteps
    match config.timestep_spacing:
        case TimestepSpacing.LINSPACE:
            timesteps = np.linspace(0, trained - 1, step_count + 1).round()[::-1][:-1]
        case TimestepSpacing.LEADING:
            timesteps = _leading(trained // (step_count + 1), step_count + 1)[::-1][:-1] + config.steps_offset
        case TimestepSpacing.TRAILING:
            timesteps = _trailing(trained, step_count)
    if step_count > 1 and np.diff(timesteps).max() >= 0:
        raise ValueError(f"{step_count} steps do not fit a training schedule of {trained}")
    return _checked(timesteps, trained)


def _leading(ratio: int, count: int) -> Timesteps:
    return (np.arange(0, count) * ratio).astype(np.float64)


def _trailing(trained: int, step_count: int) -> Timesteps:
    # Rounding makes arange return one value too many for some counts (61 of 1000), timestep -1: drop it.
    return np.round(np.arange(trained, 0, -trained / step_count))[:step_count] - 1


def _checked(timesteps: Timesteps, trained: int) -> Timesteps:
    if timesteps[0] > trained - 1 or len(timesteps) > trained:
        raise ValueError(f"{len(timesteps)} steps do not fit a training schedule of {trained}")
    return timesteps.copy()
