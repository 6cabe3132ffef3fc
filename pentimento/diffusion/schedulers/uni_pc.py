"""Sample with UniPC of second order (Zhao et al. 2023, B(h) = exp(h) - 1): a multistep predictor, and a corrector that
improves the latent of a step by the network's output for it, without another pass.

Coefficients are computed once, in diffusers' order on float32 scalars. A start or a resumed latent has no earlier
outputs: its first step is of order 1 and is not corrected.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pentimento.diffusion.schedulers.config import DiffusionConfig
from pentimento.diffusion.schedulers.noise import positive_alphas
from pentimento.diffusion.schedulers.schedule import SamplerState, StepSequence
from pentimento.diffusion.schedulers.unit_variance import SignalLevel, UnitVarianceSchedule, signal_level, solver_levels
from pentimento.domain.generation import SigmaSpacing


@dataclass(frozen=True)
class UniPcSpan:
    """Hold the scalars of an integration over one step: weights of its first latent, of the clean latent predicted
    there, and of the correction by other outputs. `ratios[0]` is the distance to the step before, in this step's."""

    latent_weight: float
    clean_weight: float
    correction_weight: float
    ratios: tuple[float, ...] = ()
    corrector: tuple[float, ...] = ()

    def integrated(self, latent: Tensor, clean: Tensor, correction: Tensor | None) -> Tensor:
        """Return the latent at the end of the step."""
        following = self.latent_weight * latent - self.clean_weight * clean
        return following if correction is None else following - self.correction_weight * correction


@dataclass(frozen=True)
class UniPcStep:
    """Hold one step: its level, the span to the next level, and the spans that led here, by the order of the step
    before."""

    alpha: float
    sigma: float
    span: UniPcSpan
    led_here: tuple[UniPcSpan, ...]
    is_second_order: bool


@dataclass(frozen=True)
class UniPcSchedule(UnitVarianceSchedule[UniPcStep]):
    """Take the steps of UniPC. `earlier` of a state: the latent before the last step, and the clean latents that its
    predictor read, oldest first."""

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Return the next state and the predicted clean latent."""
        step, latent = self.steps[state.step_index], state.latent
        clean = self._clean(step, latent, prediction)
        before = state.earlier[1:]
        if before:
            latent = _corrected(step.led_here[len(before) - 1], state.earlier[0], before, clean)
        read: tuple[Tensor, ...] = (clean,)
        correction = None
        if step.is_second_order and before:
            read = (before[-1], clean)
            correction = 0.5 * ((before[-1] - clean) / step.span.ratios[0])
        following = step.span.integrated(latent, clean, correction).to(latent.dtype)
        return SamplerState(following, self.order.after(state.step_index), (latent, *read)), clean


def _corrected(span: UniPcSpan, last: Tensor, before: Sequence[Tensor], clean: Tensor) -> Tensor:
    *older, previous = before
    correction = span.corrector[-1] * (clean - previous)
    if older:
        correction = span.corrector[0] * ((older[0] - previous) / span.ratios[0]) + correction
    return span.integrated(last, previous, correction).to(last.dtype)


def make_uni_pc_schedule(config: DiffusionConfig, order: StepSequence) -> UniPcSchedule:
    """Build the schedule. Raises ValueError if the steps do not fit the training schedule."""
    last = 0.0 if config.final_sigma_zero else None
    timesteps, sigmas = solver_levels(config, positive_alphas(config), order.step_count, (SigmaSpacing.KARRAS,), last)
    steps = tuple(_step(config, sigmas, index, order) for index in range(order.step_count))
    return UniPcSchedule(timesteps[order.levels], tuple(sigmas[order.levels].tolist()), order, config, steps)


def _step(config: DiffusionConfig, sigmas: Tensor, index: int, order: StepSequence) -> UniPcStep:
    before = order.before(index)
    earliest = order.before(before) if before >= 0 else -1
    steps = (earliest, before, index, order.after(index))
    two_before, one_before, here, after = (
        signal_level(sigmas[order.level_of(step)]) if step >= 0 else None for step in steps
    )
    assert here is not None and after is not None
    led_here: tuple[UniPcSpan, ...] = ()
    if one_before is not None:
        led_here = (_span(None, one_before, here), _span(two_before, one_before, here))
    ends = order.after(index) == order.step_count
    is_second_order = one_before is not None and not (config.lower_order_final and ends)
    span = _span(one_before, here, after)
    return UniPcStep(float(here.alpha), float(here.sigma), span, led_here, is_second_order)


def _span(before: SignalLevel | None, start: SignalLevel, end: SignalLevel) -> UniPcSpan:
    length = end.log_snr - start.log_snr
    growth = torch.expm1(-length)
    weights = (float(end.sigma / start.sigma), float(end.alpha * growth), float(end.alpha * growth))
    if before is None:
        return UniPcSpan(*weights, corrector=(0.5,))
    ratio = (before.log_snr - start.log_snr) / length
    return UniPcSpan(*weights, (float(ratio),), _second_order_corrector(ratio, length))


def _second_order_corrector(ratio: Tensor, length: Tensor) -> tuple[float, ...]:
    """Return the weights of the slope to the step before and of the new output: equation 9 of Zhao et al. 2023."""
    backward = -length
    growth = torch.expm1(backward)
    first = growth / backward - 1
    second = first / backward - 0.5
    if not (-math.inf < ratio < 0.0 and torch.isfinite(length)):
        # No such step is taken: it leads to the end, or lies before a bridge.
        return (0.0, 0.5)
    distances = torch.stack([ratio, torch.ones(())])
    matrix = torch.stack([torch.pow(distances, 0), torch.pow(distances, 1)])
    weights: list[float] = torch.linalg.solve(matrix, torch.stack([first / growth, second * 2 / growth])).tolist()
    return tuple(weights)
