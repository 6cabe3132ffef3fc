"""Our schedules against diffusers' scheduler objects, over the space of configurations."""

from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, EulerDiscreteScheduler
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from pentimento.diffusion.schedulers import SamplerState, make_schedule, scheduler_config
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler

common = {
    "num_train_timesteps": st.sampled_from([50, 100, 1000]),
    "beta_start": st.sampled_from([0.0001, 0.00085]),
    "beta_end": st.sampled_from([0.012, 0.02]),
    "beta_schedule": st.sampled_from(["linear", "scaled_linear", "squaredcos_cap_v2"]),
    "prediction_type": st.sampled_from(["epsilon", "v_prediction", "sample"]),
    "timestep_spacing": st.sampled_from(["leading", "trailing", "linspace"]),
    "steps_offset": st.sampled_from([0, 1]),
    "rescale_betas_zero_snr": st.booleans(),
}
ddim_configs = st.fixed_dictionaries(
    common | {"clip_sample": st.booleans(), "set_alpha_to_one": st.booleans(), "clip_sample_range": st.just(1.5)}
)
euler_configs = st.fixed_dictionaries(common | {"final_sigmas_type": st.sampled_from(["zero", "sigma_min"])})
step_counts = st.integers(1, 50)


def unit_noise(seed: int) -> torch.Tensor:
    return torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(seed))


def schedule_of(scheduler: Scheduler, config: dict[str, Any], steps: int, eta: float = 0.0) -> Any:
    try:
        return make_schedule(scheduler_config(scheduler, config), steps, eta)
    except InvalidArgument:
        reject()


@given(config=ddim_configs, steps=step_counts, eta=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_every_ddim_step_equals_diffusers(config: dict[str, Any], steps: int, eta: float, seed: int) -> None:
    schedule = schedule_of(Scheduler.DDIM, config, steps, eta)
    reference = DDIMScheduler(**config)
    reference.set_timesteps(steps)
    assume(len(reference.timesteps) == steps)  # rounding gives diffusers one too many for a few step counts
    assert torch.equal(schedule.timesteps, reference.timesteps)
    prediction, latent, noise = unit_noise(seed), unit_noise(seed + 10), unit_noise(seed + 20)
    for index, timestep in enumerate(reference.timesteps):
        expected = reference.step(prediction, timestep, latent, eta=eta, variance_noise=noise if eta else None)
        state, clean = schedule.advance(SamplerState(latent, index), prediction, noise if eta else None)
        torch.testing.assert_close(state.latent, expected.prev_sample, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(clean, expected.pred_original_sample, rtol=0, atol=0, equal_nan=True)


@given(config=euler_configs, steps=step_counts, seed=st.integers(0, 9))
@settings(max_examples=150, deadline=None)
def test_every_euler_step_equals_diffusers(config: dict[str, Any], steps: int, seed: int) -> None:
    schedule = schedule_of(Scheduler.EULER, config, steps)
    reference = EulerDiscreteScheduler(**config)
    reference.set_timesteps(steps)
    assume(len(reference.timesteps) == steps)  # rounding gives diffusers one too many for a few step counts
    assert torch.equal(schedule.timesteps, reference.timesteps)
    prediction, latent = unit_noise(seed), unit_noise(seed + 10)
    assert torch.equal(schedule.initial_latent(latent), latent * reference.init_noise_sigma)
    reference.set_begin_index(0)
    for index, timestep in enumerate(reference.timesteps):
        rows = torch.empty(2, *latent.shape[1:])
        schedule.fill_model_input(SamplerState(latent, index), rows)
        assert torch.equal(rows, torch.cat([reference.scale_model_input(latent, timestep)] * 2))
        expected = reference.step(prediction, timestep, latent)
        state, clean = schedule.advance(SamplerState(latent, index), prediction, None)
        assert torch.equal(state.latent, expected.prev_sample)
        assert torch.equal(clean, expected.pred_original_sample)


@pytest.mark.parametrize("scheduler", [Scheduler.DDIM, Scheduler.EULER])
@given(config=st.fixed_dictionaries(common), steps=step_counts, data=st.data())
@settings(max_examples=60, deadline=None)
def test_re_noising_equals_diffusers(
    scheduler: Scheduler, config: dict[str, Any], steps: int, data: st.DataObject
) -> None:
    schedule = schedule_of(scheduler, config, steps)
    first = data.draw(st.integers(0, steps - 1))
    reference = (DDIMScheduler if scheduler is Scheduler.DDIM else EulerDiscreteScheduler)(**config)
    reference.set_timesteps(steps)
    assume(len(reference.timesteps) == steps)  # rounding gives diffusers one too many for a few step counts
    if scheduler is Scheduler.EULER:
        reference.set_begin_index(first)
    clean, noise = unit_noise(1), unit_noise(2)
    expected = reference.add_noise(clean, noise, reference.timesteps[first : first + 1])
    assert torch.equal(schedule.noised_latent(clean, noise, first), expected)


@pytest.mark.parametrize("steps", [61, 103, 998])
def test_trailing_spacing_has_exactly_the_steps_asked_for(steps: int) -> None:
    schedule = make_schedule(scheduler_config(Scheduler.DDIM, {"timestep_spacing": "trailing"}), steps, 0.0)

    assert schedule.step_count == steps
    assert schedule.timesteps.min() >= 0


@pytest.mark.parametrize("scheduler", [Scheduler.DDIM, Scheduler.EULER])
@given(steps=st.integers(2, 50), data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_latent_survives_the_form_it_is_stored_in(scheduler: Scheduler, steps: int, data: st.DataObject) -> None:
    schedule = make_schedule(scheduler_config(scheduler, {}), steps, 0.0)
    step = data.draw(st.integers(1, steps - 1))
    state = SamplerState(unit_noise(1), step)

    again = schedule.from_variance_preserving(schedule.to_variance_preserving(state), step)

    torch.testing.assert_close(again.latent, state.latent, rtol=1e-6, atol=0)


def test_eta_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(InvalidArgument, match="eta"):
        make_schedule(scheduler_config(Scheduler.EULER, {}), 10, 0.5)
