"""Partial re-noising: a stored latent taken back to an earlier, louder step with fresh noise (NIRVANA, appendix C asks
for fresh seeds after retrieval; with a deterministic sampler a seed alone changes nothing).

A latent before step K is a·x + b·e, with the signal's share a and the noise's share b of its level. The forward process
takes it to a louder level (a', b') as r·latent + sqrt(b'^2 - r^2 b^2)·noise, r = a' / a: what comes out is distributed
as x re-noised to (a', b') at once would be (Ho et al. 2020, equation 4, between two levels; for flows the same with
their shares).
"""

import math

from torch import Tensor

from pentimento.diffusion.schedulers.schedule import Schedule
from pentimento.domain.generation import Scheduler


def renoised_latent(schedule: Schedule, stored: Tensor, from_step: int, to_step: int, noise: Tensor) -> Tensor:
    """Return a latent in the form that is stored, of the level before `from_step`, at the level before `to_step`, which
    is not later. `noise` is of its shape and of unit variance. Raises ValueError for a `to_step` that is later."""
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
    """Return the shares of signal and noise in a stored latent before the step: squares sum to 1, of a flow they
    themselves do."""
    ratio = schedule.sigmas[step]
    if math.isinf(ratio):
        return 0.0, 1.0
    whole = 1.0 + ratio if schedule.scheduler is Scheduler.FLOW_MATCH_EULER else math.hypot(1.0, ratio)
    return 1.0 / whole, ratio / whole
