"""Implement samplers as frozen schedules and pure functions over an explicit state.

`make_schedule(config, step_count, eta)` computes every coefficient once; `schedule.advance(state, prediction, noise)`
is one step, from `SamplerState(schedule.initial_latent(noise), 0)` until `state.step_index == schedule.step_count`.
"""

from pentimento.diffusion.schedulers.config import (
    FLOW_SAMPLERS,
    DiffusionConfig,
    FlowConfig,
    SchedulerConfig,
    sampler_of,
    scheduler_config,
    scheduler_configs,
)
from pentimento.diffusion.schedulers.keys import UnsupportedConfig
from pentimento.diffusion.schedulers.schedule import (
    DIFFUSION_SCHEDULERS,
    FLOW_SCHEDULERS,
    SamplerState,
    Schedule,
    StepSequence,
    first_img2img_step,
    first_pass,
    load_samplers,
    make_schedule,
    nearest_step,
    renoised_latent,
)

__all__ = [
    "DIFFUSION_SCHEDULERS",
    "FLOW_SAMPLERS",
    "FLOW_SCHEDULERS",
    "DiffusionConfig",
    "FlowConfig",
    "SamplerState",
    "Schedule",
    "SchedulerConfig",
    "StepSequence",
    "UnsupportedConfig",
    "first_img2img_step",
    "first_pass",
    "load_samplers",
    "make_schedule",
    "nearest_step",
    "renoised_latent",
    "sampler_of",
    "scheduler_config",
    "scheduler_configs",
]
