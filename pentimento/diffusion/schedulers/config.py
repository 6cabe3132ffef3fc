"""diffusers' scheduler_config.json, read strictly: what is not supported is refused by its name."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pentimento.domain.generation import Scheduler


class PredictionType(Enum):
    """What the network predicts: the noise, the velocity (Salimans and Ho 2022) or the clean sample."""

    EPSILON = "epsilon"
    V_PREDICTION = "v_prediction"
    SAMPLE = "sample"


class TimestepSpacing(Enum):
    """Table 2 of "Common Diffusion Noise Schedules and Sample Steps are Flawed" (Lin et al. 2023)."""

    LEADING = "leading"
    TRAILING = "trailing"
    LINSPACE = "linspace"


class BetaSchedule(Enum):
    LINEAR = "linear"
    SCALED_LINEAR = "scaled_linear"
    SQUARED_COSINE = "squaredcos_cap_v2"


class UnsupportedConfig(ValueError):
    """A configuration asks for what this build does not do; the message names the key and the value."""


@dataclass(frozen=True)
class SchedulerConfig:
    """The supported keys, unset ones filled with the defaults of diffusers' class for `scheduler`."""

    scheduler: Scheduler
    num_train_timesteps: int = 1000
    beta_start: float = 0.0001
    beta_end: float = 0.02
    beta_schedule: BetaSchedule = BetaSchedule.LINEAR
    trained_betas: tuple[float, ...] | None = None
    rescale_betas_zero_snr: bool = False
    prediction_type: PredictionType = PredictionType.EPSILON
    timestep_spacing: TimestepSpacing = TimestepSpacing.LEADING
    steps_offset: int = 0
    clip_sample: bool = False
    clip_sample_range: float = 1.0
    set_alpha_to_one: bool = True
    final_sigma_zero: bool = True


# Classes whose configuration describes a variance-preserving noise schedule; DDIM and Euler run on any of them.
# The value is the scheduler that serves such a checkpoint when a request names none.
SCHEDULER_CLASSES = {
    "DDIMScheduler": Scheduler.DDIM,
    "EulerDiscreteScheduler": Scheduler.EULER,
    "PNDMScheduler": Scheduler.DDIM,
    "DDPMScheduler": Scheduler.DDIM,
    "DPMSolverMultistepScheduler": Scheduler.EULER,
    "EulerAncestralDiscreteScheduler": Scheduler.EULER,
    "LMSDiscreteScheduler": Scheduler.EULER,
}

# Keys that change nothing at these values; any other value is refused. An empty tuple: any value is harmless, because
# the key belongs to a sampler that we do not run or takes effect only beside a key that is refused.
_INERT: Mapping[str, tuple[Any, ...]] = {
    "thresholding": (False,),
    "dynamic_thresholding_ratio": (),
    "sample_max_value": (),
    "interpolation_type": ("linear",),
    "timestep_type": ("discrete",),
    "use_karras_sigmas": (False, None),
    "use_exponential_sigmas": (False, None),
    "use_beta_sigmas": (False, None),
    "use_flow_sigmas": (False, None),
    "use_lu_lambdas": (False, None),
    "use_dynamic_shifting": (False, None),
    "sigma_min": (None,),
    "sigma_max": (None,),
    "flow_shift": (),
    "time_shift_type": (),
    "skip_prk_steps": (),
    "variance_type": (None, "fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log"),
    "algorithm_type": (),
    "solver_order": (),
    "solver_type": (),
    "lower_order_final": (),
    "euler_at_final": (),
    "lambda_min_clipped": (),
}

_SAMPLER_DEFAULTS: Mapping[Scheduler, Mapping[str, Any]] = {
    Scheduler.DDIM: {"timestep_spacing": "leading", "clip_sample": True},
    Scheduler.EULER: {"timestep_spacing": "linspace", "clip_sample": False},
}
_KEYS = {
    "num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas", "rescale_betas_zero_snr",
    "prediction_type", "timestep_spacing", "steps_offset", "clip_sample", "clip_sample_range", "set_alpha_to_one",
    "final_sigmas_type",
}  # fmt: skip


def read_scheduler_config(document: Mapping[str, Any]) -> tuple[Scheduler, dict[str, Any]]:
    """The checkpoint's own scheduler and its configuration as stored, checked for every scheduler that we run.

    Raises UnsupportedConfig naming the class or the key.
    """
    class_name = document.get("_class_name")
    if class_name not in SCHEDULER_CLASSES:
        raise UnsupportedConfig(f"scheduler class {class_name!r} is not one of {', '.join(SCHEDULER_CLASSES)}")
    stored = {key: value for key, value in document.items() if not key.startswith("_")}
    for scheduler in _SAMPLER_DEFAULTS:
        scheduler_config(scheduler, stored)
    return SCHEDULER_CLASSES[class_name], stored


def scheduler_config(scheduler: Scheduler, stored: Mapping[str, Any]) -> SchedulerConfig:
    """`stored` as diffusers' class for `scheduler` would read it.

    Raises UnsupportedConfig naming the key for anything that would change the picture and is not implemented.
    """
    for key, value in stored.items():
        _refuse_unsupported(key, value)
    values = {**_SAMPLER_DEFAULTS[scheduler], **{key: stored[key] for key in stored if key in _KEYS}}
    config = SchedulerConfig(scheduler, **_typed(values))
    _check_ranges(config)
    return config


def _refuse_unsupported(key: str, value: Any) -> None:
    if key in _KEYS:
        return
    if key not in _INERT:
        raise UnsupportedConfig(f"key {key!r} is not supported")
    allowed = _INERT[key]
    if allowed and value not in allowed:
        raise UnsupportedConfig(f"{key}={value!r} is not supported, only {allowed[0]!r}")


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    typed = dict(values)
    for key, enumeration in (
        ("prediction_type", PredictionType),
        ("timestep_spacing", TimestepSpacing),
        ("beta_schedule", BetaSchedule),
    ):
        if key in typed:
            typed[key] = _member(key, enumeration, typed[key])
    if typed.get("trained_betas") is not None:
        typed["trained_betas"] = tuple(float(beta) for beta in typed["trained_betas"])
    final_sigma = typed.pop("final_sigmas_type", "zero")
    if final_sigma not in ("zero", "sigma_min"):
        raise UnsupportedConfig(f"final_sigmas_type={final_sigma!r} is not zero or sigma_min")
    return {**typed, "final_sigma_zero": final_sigma == "zero"}


def _member(key: str, enumeration: type[Enum], value: Any) -> Enum:
    try:
        return enumeration(value)
    except ValueError:
        known = ", ".join(member.value for member in enumeration)
        raise UnsupportedConfig(f"{key}={value!r} is not one of {known}") from None


def _check_ranges(config: SchedulerConfig) -> None:
    betas = config.trained_betas or (config.beta_start, config.beta_end)
    if not all(0.0 < beta < 1.0 for beta in betas):
        raise UnsupportedConfig("betas must lie between 0 and 1")
    if config.num_train_timesteps < 1:
        raise UnsupportedConfig(f"num_train_timesteps={config.num_train_timesteps} is below 1")
    if config.trained_betas is not None and len(config.trained_betas) != config.num_train_timesteps:
        raise UnsupportedConfig("trained_betas must hold num_train_timesteps values")
    if config.steps_offset < 0:
        raise UnsupportedConfig(f"steps_offset={config.steps_offset} is below 0")
