"""What of a scheduler_config.json is read by which sampler, and what is refused by its name."""

import inspect
import json
from typing import Any

import diffusers
import pytest

from pentimento.diffusion.schedulers import (
    DIFFUSION_SCHEDULERS,
    FLOW_SCHEDULERS,
    UnsupportedConfig,
    scheduler_config,
    scheduler_configs,
)
from pentimento.diffusion.schedulers.keys import WITHOUT_EFFECT, acted_on
from pentimento.domain.generation import Scheduler

EULER, ANCESTRAL, DPM = Scheduler.EULER, Scheduler.EULER_ANCESTRAL, Scheduler.DPM_SOLVER_PP_2M
FLOW = Scheduler.FLOW_MATCH_EULER
CLASSES: dict[Scheduler, Any] = {
    Scheduler.DDIM: diffusers.DDIMScheduler,
    EULER: diffusers.EulerDiscreteScheduler,
    ANCESTRAL: diffusers.EulerAncestralDiscreteScheduler,
    DPM: diffusers.DPMSolverMultistepScheduler,
    FLOW: diffusers.FlowMatchEulerDiscreteScheduler,
}
# Those that leave keys behind which the samplers here do not take.
WRITERS: dict[str, dict[str, Any]] = {
    "UniPCMultistepScheduler": {"beta_schedule": "scaled_linear", "solver_type": "bh1"},
    "LCMScheduler": {"original_inference_steps": 25},
    "TCDScheduler": {"beta_start": 0.001},
    "HeunDiscreteScheduler": {},
}
# EDM's classes know no spacing of timesteps.
EDM = {"sigma_min": 0.002, "sigma_max": 80.0, "sigma_data": 0.5, "sigma_schedule": "karras", "rho": 7.0}


@pytest.mark.parametrize(
    ("scheduler", "key", "value"),
    [
        (Scheduler.DDIM, "thresholding", True),
        (EULER, "use_exponential_sigmas", True),
        (EULER, "interpolation_type", "log_linear"),
        (EULER, "timestep_type", "continuous"),
        (EULER, "final_sigmas_type", "none"),
        (ANCESTRAL, "prediction_type", "sample"),
        (DPM, "algorithm_type", "sde-dpmsolver++"),
        (DPM, "algorithm_type", "deis"),
        (DPM, "solver_order", 3),
        (DPM, "solver_type", "rk4"),
        (DPM, "use_beta_sigmas", True),
        (DPM, "use_lu_lambdas", True),
        (DPM, "use_flow_sigmas", True),
        (DPM, "lambda_min_clipped", -5.1),
        (DPM, "variance_type", "learned_range"),
        (FLOW, "use_karras_sigmas", True),
        (FLOW, "use_dynamic_shifting", True),
        (FLOW, "stochastic_sampling", True),
        (FLOW, "shift_terminal", 0.1),
        (FLOW, "invert_sigmas", True),
        (FLOW, "shift", 0.0),
        (FLOW, "shift", float("nan")),
    ],
)
def test_what_is_not_implemented_is_refused_by_its_key(scheduler: Scheduler, key: str, value: Any) -> None:
    with pytest.raises(UnsupportedConfig, match=key):
        scheduler_config(scheduler, {key: value})


@pytest.mark.parametrize(
    ("scheduler", "key", "value"),
    [
        (Scheduler.DDIM, "use_karras_sigmas", True),
        (ANCESTRAL, "final_sigmas_type", "sigma_min"),
        (EULER, "solver_order", 3),
        (DPM, "clip_sample", True),
        (FLOW, "base_shift", 0.5),
        (EULER, "sigma_max", 80.0),
        (DPM, "solver_type", "bh2"),
        *((scheduler, "some_new_key", 1) for scheduler in Scheduler),
    ],
)
def test_keys_of_other_samplers_change_nothing(scheduler: Scheduler, key: str, value: Any) -> None:
    assert scheduler_config(scheduler, {key: value}) == scheduler_config(scheduler, {})


def test_levels_of_karras_spacing_are_refused() -> None:
    with pytest.raises(UnsupportedConfig, match=r"sigma_max=80\.0"):
        scheduler_config(EULER, {"sigma_max": 80.0, "use_karras_sigmas": True})


@pytest.mark.parametrize("scheduler", CLASSES)
def test_every_key_of_diffusers_class_is_considered(scheduler: Scheduler) -> None:
    taken = set(inspect.signature(CLASSES[scheduler].__init__).parameters) - {"self"}

    assert taken - acted_on(scheduler) - WITHOUT_EFFECT == taken & {"variance_type"}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("scheduler", DIFFUSION_SCHEDULERS)
def test_leftover_keys_are_read_as_diffusers_reads_them(scheduler: Scheduler, writer: str) -> None:
    stored = json.loads(getattr(diffusers, writer)(timestep_spacing="trailing", **WRITERS[writer]).to_json_string())
    theirs = json.loads(CLASSES[scheduler].from_config(stored).to_json_string())
    taken = {key: theirs[key] for key in inspect.signature(CLASSES[scheduler].__init__).parameters if key in theirs}

    assert scheduler_config(scheduler, stored) == scheduler_config(scheduler, taken)


def test_leftover_keys_of_edm_change_nothing() -> None:
    configs = scheduler_configs("EulerDiscreteScheduler", {"beta_end": 0.01, **EDM}, DIFFUSION_SCHEDULERS)

    assert configs == scheduler_configs("EulerDiscreteScheduler", {"beta_end": 0.01}, DIFFUSION_SCHEDULERS)


def test_the_checkpoints_own_scheduler_comes_first() -> None:
    configs = scheduler_configs("DPMSolverMultistepScheduler", {"solver_type": "heun"}, DIFFUSION_SCHEDULERS)

    assert list(configs) == [DPM, Scheduler.DDIM, EULER, ANCESTRAL]


def test_samplers_that_a_configuration_does_not_suit_are_not_offered() -> None:
    configs = scheduler_configs("DDIMScheduler", {"prediction_type": "sample"}, DIFFUSION_SCHEDULERS)

    assert list(configs) == [Scheduler.DDIM, EULER, DPM]


def test_a_checkpoint_whose_own_scheduler_is_not_implemented_is_refused() -> None:
    with pytest.raises(UnsupportedConfig, match="algorithm_type"):
        scheduler_configs("DPMSolverMultistepScheduler", {"algorithm_type": "dpmsolver"}, DIFFUSION_SCHEDULERS)


@pytest.mark.parametrize("name", ["FlowMatchEulerDiscreteScheduler", "LCMScheduler", ""])
def test_schedulers_of_other_families_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedConfig, match=repr(name)):
        scheduler_configs(name, {}, DIFFUSION_SCHEDULERS)


def test_a_flow_has_one_sampler() -> None:
    configs = scheduler_configs("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}, FLOW_SCHEDULERS)

    assert list(configs) == [FLOW]
