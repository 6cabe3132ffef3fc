"""Schedules with steps left out and latents noised again, against diffusers' own schedulers."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pentimento.diffusion.schedulers import (
    SamplerState,
    Schedule,
    StepSequence,
    make_schedule,
    renoised_latent,
    scheduler_config,
)
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler
from pentimento.domain.thinned_steps import bridge_steps
from pentimento.policies.thinning import ThinningOption, thinned_steps
from tests.unit.diffusion.test_schedules import CONFIGS, REFERENCES, SPACINGS, model_input, scaled, unit_noise

# DDIM's scheduler takes no list; see its own test.
TAKE_A_LIST = (Scheduler.EULER, Scheduler.DPM_SOLVER_PP_2M, Scheduler.DPM_SOLVER_PP_2M_SDE)
LISTED = [scheduler for scheduler in REFERENCES if scheduler is not Scheduler.DDIM]


@st.composite
def thinnings(draw: st.DrawFn, least_steps: int = 2) -> tuple[int, tuple[int, ...]]:
    """Draw a number of steps, and the taken steps from one on."""
    count = draw(st.integers(least_steps, 40))
    first = draw(st.integers(0, count - 1))
    rest = draw(st.lists(st.integers(first + 1, count - 1), unique=True)) if first + 1 < count else []
    return count, (first, *sorted(rest))


def schedule_or_reject(
    scheduler: Scheduler, config: dict[str, Any], count: int, thinned: tuple[int, ...], eta: float = 0.0
) -> Schedule:
    try:
        return make_schedule(scheduler_config(scheduler, config), count, eta, thinned)
    except InvalidArgument:
        assume(False)
        raise


def taken_steps(count: int, thinned: tuple[int, ...]) -> list[int]:
    return [*range(thinned[0]), *thinned]


def reference_of(scheduler: Scheduler, config: dict[str, Any], schedule: Schedule, taken: list[int]) -> Any:
    """Return diffusers' scheduler with the explicit list of timesteps, or of noise levels if it takes only those."""
    reference = REFERENCES[scheduler](**config)
    if scheduler is Scheduler.FLOW_MATCH_EULER:
        reference = REFERENCES[scheduler](**{**config, "shift": 1.0})
        levels = [schedule.steps[step].sigma for step in taken]  # type: ignore[attr-defined]
        reference.set_timesteps(sigmas=levels, timesteps=schedule.timesteps[taken].tolist())
    elif scheduler not in TAKE_A_LIST or any(config.get(key) for key in SPACINGS):
        # It has no parameter for a list: use its own arrays, without the omitted steps.
        reference.set_timesteps(schedule.step_count)
        assume(len(reference.timesteps) == schedule.step_count)
        if config.get("timestep_spacing") == "trailing":
            # diffusers rounds to a step too many there (29 of 50), and Karras's levels end elsewhere.
            trained = config["num_train_timesteps"]
            assume(len(np.arange(trained, 0, -trained / schedule.step_count)) == schedule.step_count)
        reference.timesteps = reference.timesteps[taken]
        if hasattr(reference, "sigmas"):
            reference.sigmas = torch.cat([reference.sigmas[taken], reference.sigmas[-1:]])
        reference.num_inference_steps = len(taken)
    else:
        reference.set_timesteps(timesteps=schedule.timesteps[taken].tolist())
    reference.set_begin_index(0)
    if scheduler is Scheduler.TCD:
        reference.step = partial(reference.step, eta=0.0)
    return reference


@pytest.mark.parametrize("scheduler", LISTED)
@given(data=st.data(), thinning=thinnings(), seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_a_thinned_run_equals_diffusers_with_the_same_list(
    scheduler: Scheduler, data: st.DataObject, thinning: tuple[int, tuple[int, ...]], seed: int
) -> None:
    config = data.draw(CONFIGS[scheduler])
    count, thinned = thinning
    schedule, taken = schedule_or_reject(scheduler, config, count, thinned), taken_steps(count, thinned)
    reference = reference_of(scheduler, config, schedule, taken)
    state, latent = SamplerState(unit_noise(seed), 0), unit_noise(seed)
    theirs, ours = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)

    for place, step in enumerate(taken):
        assert state.step_index == step
        prediction, timestep = unit_noise(seed + step), reference.timesteps[place]
        assert torch.equal(model_input(schedule, state), scaled(reference, latent, timestep))
        extra = {"generator": theirs} if schedule.needs_noise else {}
        latent = reference.step(prediction, timestep, latent, **extra).prev_sample
        noise = torch.randn(latent.shape, generator=ours) if schedule.needs_noise else None
        state, _ = schedule.advance(state, prediction, noise)
        torch.testing.assert_close(state.latent, latent, rtol=0, atol=0, equal_nan=True)
    assert state.step_index == count


@given(config=CONFIGS[Scheduler.DDIM], gap=st.sampled_from([2, 4, 5]), first=st.integers(0, 9), seed=st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_ddim_thinned_by_whole_number_equals_diffusers_with_fewer_steps(
    config: dict[str, Any], gap: int, first: int, seed: int
) -> None:
    """diffusers' DDIM takes a fixed stride from any timestep: its stride is that of fewer steps from the thinning
    on."""
    config = {**config, "num_train_timesteps": 1000, "timestep_spacing": "leading"}
    first, count = first - first % gap, 20
    thinned = tuple(range(first, count, gap))
    schedule = schedule_or_reject(Scheduler.DDIM, config, count, thinned)
    reference = DDIMScheduler(**config)
    reference.set_timesteps(count)
    state, latent = SamplerState(unit_noise(seed), 0), unit_noise(seed)

    for step in taken_steps(count, thinned):
        reference.num_inference_steps = count if step < first else count // gap
        prediction = unit_noise(seed + step)
        latent = reference.step(prediction, schedule.timesteps[step], latent).prev_sample
        state, _ = schedule.advance(state, prediction, None)
        if step + gap < count:
            torch.testing.assert_close(state.latent, latent, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("scheduler", list(REFERENCES))
@given(data=st.data(), count=st.integers(1, 30), first=st.integers(0, 29))
@settings(max_examples=20, deadline=None)
def test_thinning_that_leaves_nothing_out_changes_no_bit(
    scheduler: Scheduler, data: st.DataObject, count: int, first: int
) -> None:
    assume(first < count)
    config = data.draw(CONFIGS[scheduler])
    whole = schedule_or_reject(scheduler, config, count, ())
    thinned = schedule_or_reject(scheduler, config, count, tuple(range(first, count)))

    # NaN of impossible levels is not equal to itself.
    assert repr(thinned.steps) == repr(whole.steps)  # type: ignore[attr-defined]


@given(thinning=thinnings())
def test_step_sequence_takes_counted_steps(thinning: tuple[int, tuple[int, ...]]) -> None:
    count, thinned = thinning
    order = StepSequence(count, thinned)
    taken, step = [], 0
    while step < count:
        assert order.count_from(step) == len(taken_steps(count, thinned)) - len(taken)
        assert order.before(step) == (taken[-1] if taken else -1)
        taken.append(step)
        step = order.after(step)

    assert taken == taken_steps(count, thinned)
    assert order.count_from(count) == 0


def test_last_thinned_step_of_ddim_reaches_last_timestep() -> None:
    config = scheduler_config(Scheduler.DDIM, {"timestep_spacing": "trailing"})
    thinned = thinned_steps(ThinningOption(20, 10, 1.0), 50)
    whole, less = make_schedule(config, 50, 0.0), make_schedule(config, 50, 0.0, thinned)

    assert less.steps[47].root_alpha_next == whole.steps[49].root_alpha_next  # type: ignore[attr-defined]
    assert less.steps[20].root_alpha_next == whole.steps[22].root_alpha_next  # type: ignore[attr-defined]


@pytest.mark.parametrize("thinned", [(3, 3), (4, 2), (10,), (-1, 2)])
def test_steps_that_are_none_of_the_schedule_are_refused(thinned: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="thinned_steps"):
        make_schedule(scheduler_config(Scheduler.EULER, {}), 10, 0.0, thinned)


STEP_COUNT = 20
BRIDGE = (2, 5, 8)
CONFIG = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


def config_of(scheduler: Scheduler) -> dict[str, Any]:
    shifts = {Scheduler.FLOW_MATCH_EULER: {"shift": 3.0}, Scheduler.FLOW_DPM_SOLVER_PP_2M: {"flow_shift": 3.0}}
    return dict(shifts.get(scheduler, CONFIG))


def schedule_of(scheduler: Scheduler) -> Schedule:
    return make_schedule(scheduler_config(scheduler, config_of(scheduler)), STEP_COUNT, 0.0)


def noised_by_diffusers(scheduler: Scheduler, clean: torch.Tensor, noise: torch.Tensor, step: int) -> torch.Tensor:
    """Return a clean latent at the level before the step, in the sampler's own scale."""
    reference = REFERENCES[scheduler](**config_of(scheduler))
    reference.set_timesteps(STEP_COUNT)
    if scheduler is not Scheduler.DDIM:
        reference.set_begin_index(step)
    timestep = reference.timesteps[step : step + 1]
    if scheduler is Scheduler.FLOW_MATCH_EULER:
        return reference.scale_noise(clean, timestep, noise)  # type: ignore[no-any-return]
    return reference.add_noise(clean, noise, timestep)  # type: ignore[no-any-return]


def shares(scheduler: Scheduler, step: int) -> tuple[float, float]:
    """Return diffusers' shares of signal and noise."""
    one, nothing = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    signal = noised_by_diffusers(scheduler, one, nothing, step)
    loudness = noised_by_diffusers(scheduler, nothing, one, step)
    return float(signal), float(loudness)


@pytest.mark.parametrize("scheduler", REFERENCES, ids=lambda each: each.value)
def test_latent_noised_again_is_the_clean_one_noised_at_once(scheduler: Scheduler) -> None:
    schedule = schedule_of(scheduler)
    clean, first, second = unit_noise(1), unit_noise(2), unit_noise(3)
    for from_step, to_step in ((10, 5), (19, 1), (3, 2), (7, 7), (6, 0)):
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
        assert torch.allclose(resumed, expected, rtol=1e-3, atol=1e-3), (from_step, to_step)


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
