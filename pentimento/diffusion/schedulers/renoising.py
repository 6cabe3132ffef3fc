"""Re-noise a stored latent to an earlier, noisier step with fresh noise (NIRVANA, appendix C asks for fresh seeds after
retrieval; with a deterministic sampler a new seed would change nothing).

A latent before step K is a·x + b·e, with the signal's share a and the noise's share b of its level. The forward process
takes it to a noisier level (a', b') as r·latent + sqrt(b'^2 - r^2 b^2)·noise, r = a' / a: the result has the
distribution of x re-noised directly to (a', b') (Ho et al. 2020, equation 4, between two levels; for flows the same
with their shares).
"""

import math

from torch import Tensor

from pentimento.diffusion.schedulers.config import FlowConfig
from pentimento.diffusion.schedulers.schedule import Schedule


def renoised_latent(schedule: Schedule, stored: Tensor, from_step: int, to_step: int, noise: Tensor) -> Tensor:
    """Return a `stored` latent, at the level before `from_step`, re-noised to the level before `to_step`. `noise` has
    its shape and unit variance. Raises ValueError for a `to_step` after `from_step`."""
    if not 0 <= to_step <= from_step:
        raise ValueError(f"a latent of step {from_step} cannot be re-noised to step {to_step}")
    if to_step == from_step:
        return stored
    signal, loudness = _shares(schedule, from_step)
    signal_to, loudness_to = _shares(schedule, to_step)
    kept = signal_to / signal
    added = math.sqrt(max(loudness_to**2 - (kept * loudness) ** 2, 0.0))
    return kept * stored + added * noise


def _shares(schedule: Schedule, step: int) -> tuple[float, float]:
    """Return the shares of signal and noise in a stored latent before the step: their squares sum to 1; for a flow the
    shares themselves do."""
    ratio = schedule.sigmas[step]
    if math.isinf(ratio):
        return 0.0, 1.0
    whole = 1.0 + ratio if isinstance(schedule.config, FlowConfig) else math.hypot(1.0, ratio)
    return 1.0 / whole, ratio / whole
