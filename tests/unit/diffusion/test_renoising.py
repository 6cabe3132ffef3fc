"""Re-noised latents against diffusers' scheduler objects: what they make of the clean latent at once."""

import math
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler

from pentimento.diffusion.schedulers import (
    SamplerState,
    Schedule,
    make_schedule,
    renoised_latent,
    scheduler_config,
)
from pentimento.domain.generation import Scheduler
from pentimento.domain.thinned_steps import bridge_steps
from tests.unit.diffusion.test_schedules import REFERENCES

STEP_COUNT = 20
BRIDGE = (2, 5, 8)
CONFIG = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


def config_of(scheduler: Scheduler) -> dict[str, Any]:
    return {"shift": 3.0} if scheduler is Scheduler.FLOW_MATCH_EULER else dict(CONFIG)


def schedule_of(scheduler: Scheduler) -> Schedule:
    return make_schedule(scheduler_config(scheduler, config_of(scheduler)), STEP_COUNT, 0.0)


def noised_by_diffusers(scheduler: Scheduler, clean: torch.Tensor, noise: torch.Tensor, step: int) -> torch.Tensor:
    """A clean latent at the level before the step, in the sampler's own scale."""
    reference = REFERENCES[scheduler](**config_of(scheduler))
    reference.set_timesteps(STEP_COUNT)
    if scheduler is not Scheduler.DDIM:
        reference.set_begin_index(step)
    timestep = reference.timesteps[step : step + 1]
    if scheduler is Scheduler.FLOW_MATCH_EULER:
        return reference.scale_noise(clean, timestep, noise)  # type: ignore[no-any-return]
    return reference.add_noise(clean, noise, timestep)  # type: ignore[no-any-return]


def unit_noise(seed: int) -> torch.Tensor:
    return torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(seed))


def shares(scheduler: Scheduler, step: int) -> tuple[float, float]:
    """Of signal and noise, as diffusers has them."""
    one, nothing = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    signal = noised_by_diffusers(scheduler, one, nothing, step)
    loudness = noised_by_diffusers(scheduler, nothing, one, step)
    return float(signal), float(loudness)


@pytest.mark.parametrize("scheduler", REFERENCES, ids=lambda each: each.value)
@pytest.mark.parametrize(("from_step", "to_step"), [(10, 5), (19, 1), (3, 2), (7, 7), (6, 0)])
def test_a_latent_that_is_noised_again_is_the_clean_one_noised_at_once(
    scheduler: Scheduler, from_step: int, to_step: int
) -> None:
    schedule = schedule_of(scheduler)
    clean, first, second = unit_noise(1), unit_noise(2), unit_noise(3)
    at_capture = noised_by_diffusers(scheduler, clean, first, from_step)
    stored = schedule.to_variance_preserving(SamplerState(at_capture, from_step))

    again = renoised_latent(schedule, stored, from_step, to_step, second)

    # Both noises together are one of unit variance, which diffusers gives to the clean latent.
    signal, loudness = shares(scheduler, from_step)
    signal_to, loudness_to = shares(scheduler, to_step)
    kept = loudness * signal_to / signal
    both = (kept * first + math.sqrt(max(loudness_to**2 - kept**2, 0.0)) * second) / loudness_to
    expected = noised_by_diffusers(scheduler, clean, both, to_step)
    resumed = schedule.from_variance_preserving(again, to_step).latent
    assert torch.allclose(resumed, expected, rtol=1e-3, atol=1e-3)


def test_it_is_the_forward_process_of_all_training_steps_between() -> None:
    reference = DDIMScheduler(**CONFIG)
    reference.set_timesteps(STEP_COUNT)
    schedule, one, nothing = schedule_of(Scheduler.DDIM), torch.ones(1), torch.zeros(1)
    later, earlier = int(reference.timesteps[12]), int(reference.timesteps[4])

    kept = float(renoised_latent(schedule, one, 12, 4, nothing))
    added = float(renoised_latent(schedule, nothing, 12, 4, one))

    # One step of training after the other (Ho et al. 2020, equation 2).
    signal, variance = 1.0, 0.0
    for beta in reference.betas[later + 1 : earlier + 1].double().tolist():
        signal, variance = signal * math.sqrt(1 - beta), variance * (1 - beta) + beta
    assert kept == pytest.approx(signal, rel=1e-4)
    assert added == pytest.approx(math.sqrt(variance), rel=1e-4)


def test_noise_is_added_and_never_taken_away() -> None:
    with pytest.raises(ValueError, match="cannot be re-noised"):
        renoised_latent(schedule_of(Scheduler.DDIM), unit_noise(1), 4, 5, unit_noise(2))


@pytest.mark.parametrize("scheduler", REFERENCES, ids=lambda each: each.value)
def test_bridge_takes_the_steps_of_the_whole_schedule(scheduler: Scheduler) -> None:
    config = scheduler_config(scheduler, config_of(scheduler))
    bridged = make_schedule(config, STEP_COUNT, 0.0, bridge=BRIDGE)
    thinned = make_schedule(config, STEP_COUNT, 0.0, thinned_steps=(*BRIDGE, *range(9, STEP_COUNT)))
    stored, noise = unit_noise(1), unit_noise(2)
    taken, wanted = bridged.from_variance_preserving(stored, 6), thinned.from_variance_preserving(stored, 2)

    for _ in range(6, STEP_COUNT):
        assert bridged.timesteps[taken.step_index] == thinned.timesteps[wanted.step_index]
        fresh = noise if bridged.needs_noise else None
        taken, _ = bridged.advance(taken, noise * 0.5, fresh)
        wanted, _ = thinned.advance(wanted, noise * 0.5, fresh)

    assert taken.step_index == wanted.step_index == STEP_COUNT
    assert torch.equal(taken.latent, wanted.latent)


@pytest.mark.parametrize(
    ("step", "again", "back", "bridge"),
    [(25, 22, 5, (3, 7, 12, 16, 21, 25)), (5, 4, 1, (1, 5)), (5, 2, 2, (3, 4, 5)), (5, 0, 0, ())],
)
def test_bridge_steps_are_spread_evenly(step: int, again: int, back: int, bridge: tuple[int, ...]) -> None:
    assert bridge_steps(step, again, back) == bridge
