"""What of a scheduler_config.json is read by which sampler, and what is refused by its name."""

from typing import Any

import pytest

from pentimento.diffusion.schedulers import (
    DIFFUSION_SCHEDULERS,
    FLOW_SCHEDULERS,
    UnsupportedConfig,
    scheduler_config,
    scheduler_configs,
)
from pentimento.domain.generation import Scheduler

EULER, ANCESTRAL, DPM = Scheduler.EULER, Scheduler.EULER_ANCESTRAL, Scheduler.DPM_SOLVER_PP_2M
FLOW = Scheduler.FLOW_MATCH_EULER


@pytest.mark.parametrize(
    ("scheduler", "key", "value"),
    [
        (Scheduler.DDIM, "thresholding", True),
        (EULER, "use_exponential_sigmas", True),
        (EULER, "interpolation_type", "log_linear"),
        (EULER, "timestep_type", "continuous"),
        (EULER, "sigma_max", 80.0),
        (EULER, "final_sigmas_type", "none"),
        (ANCESTRAL, "prediction_type", "sample"),
        (DPM, "algorithm_type", "sde-dpmsolver++"),
        (DPM, "solver_order", 3),
        (DPM, "solver_type", "bh2"),
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
        *((scheduler, "some_new_key", 1) for scheduler in Scheduler),
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
    ],
)
def test_keys_of_other_samplers_change_nothing(scheduler: Scheduler, key: str, value: Any) -> None:
    assert scheduler_config(scheduler, {key: value}) == scheduler_config(scheduler, {})


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
