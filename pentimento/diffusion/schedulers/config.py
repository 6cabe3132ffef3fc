"""Read diffusers' scheduler_config.json; reject, by name, any unimplemented key that would change the image."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pentimento.diffusion.schedulers.keys import UnsupportedConfig, read_keys
from pentimento.domain.generation import Scheduler, SigmaSpacing


class PredictionType(Enum):
    """Name the network's prediction: the noise, the velocity (Salimans and Ho 2022) or the clean sample."""

    EPSILON = "epsilon"
    V_PREDICTION = "v_prediction"
    SAMPLE = "sample"


class TimestepSpacing(Enum):
    """Name the spacing of sampling timesteps over the training ones, as in table 2 of "Common Diffusion Noise Schedules
    and Sample Steps are Flawed" (Lin et al. 2023)."""

    LEADING = "leading"
    TRAILING = "trailing"
    LINSPACE = "linspace"


class BetaSchedule(Enum):
    """Name the growth of the training noise with the timestep."""

    LINEAR = "linear"
    SCALED_LINEAR = "scaled_linear"
    SQUARED_COSINE = "squaredcos_cap_v2"


class SolverType(Enum):
    """Name the two second-order updates of DPM-Solver++."""

    MIDPOINT = "midpoint"
    HEUN = "heun"


@dataclass(frozen=True)
class DiffusionConfig:
    """Configure a variance-preserving noise schedule and its sampling by `scheduler`: the supported keys, with the
    defaults of diffusers' class for `scheduler`."""

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
    sigma_spacing: SigmaSpacing = SigmaSpacing.TIMESTEPS
    solver_type: SolverType = SolverType.MIDPOINT
    lower_order_final: bool = True
    euler_at_final: bool = False
    original_inference_steps: int = 50
    timestep_scaling: float = 10.0


class TimeShift(Enum):
    """Name the formula of a shift by image size."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"


@dataclass(frozen=True)
class FlowConfig:
    """Configure a straight path between noise and image (Lipman et al. 2023), with timesteps shifted towards noise: by
    `shift` (Esser et al. 2024, section 5.3.2), or with `use_dynamic_shifting` by the size of the image, which has
    `image_tokens` tokens. With `shift_terminal` the levels are then stretched to end there.

    `even_levels` are spaced from 1 to 1/steps before the shift, as the pipelines of some families pass them; otherwise
    they end at the last trained timestep. With `shifts_by_steps` the shift by size follows FLUX.2's fit, which also
    depends on the number of steps, and not the configured bounds."""

    scheduler: Scheduler = Scheduler.FLOW_MATCH_EULER
    num_train_timesteps: int = 1000
    shift: float = 1.0
    use_dynamic_shifting: bool = False
    base_shift: float = 0.5
    max_shift: float = 1.15
    base_image_seq_len: int = 256
    max_image_seq_len: int = 4096
    time_shift_type: TimeShift = TimeShift.EXPONENTIAL
    shift_terminal: float | None = None
    even_levels: bool = False
    image_tokens: int = 0
    shifts_by_steps: bool = False

    def size_shift(self, step_count: int) -> float:
        """Return the shift of the image's size: linear in its tokens, as diffusers' pipelines compute it."""
        if self.shifts_by_steps:
            return _fitted_shift(self.image_tokens, step_count)
        slope = (self.max_shift - self.base_shift) / (self.max_image_seq_len - self.base_image_seq_len)
        return self.image_tokens * slope + (self.base_shift - slope * self.base_image_seq_len)


# Slope and offset of FLUX.2's shift by tokens for 10 and for 200 steps; beyond the third number the latter holds for
# all (`compute_empirical_mu` in diffusers).
_SHIFT_AT_10, _SHIFT_AT_200, _MOST_FITTED_TOKENS = (8.73809524e-05, 1.89833333), (0.00016927, 0.45666666), 4300


def _fitted_shift(image_tokens: int, step_count: int) -> float:
    at_10, at_200 = (slope * image_tokens + offset for slope, offset in (_SHIFT_AT_10, _SHIFT_AT_200))
    if image_tokens > _MOST_FITTED_TOKENS:
        return at_200
    slope = (at_200 - at_10) / 190.0
    return slope * step_count + (at_200 - 200.0 * slope)


SchedulerConfig = DiffusionConfig | FlowConfig

# Samplers of models that were trained by flow matching.
FLOW_SAMPLERS = (Scheduler.FLOW_MATCH_EULER, Scheduler.FLOW_DPM_SOLVER_PP_2M, Scheduler.SCM)

# The classes that a checkpoint may name; the value is the default scheduler of such a checkpoint. Classes without an
# implementation here describe the same kind of noise schedule as their replacement.
SCHEDULER_CLASSES = {
    "DDIMScheduler": Scheduler.DDIM,
    "EulerDiscreteScheduler": Scheduler.EULER,
    "EulerAncestralDiscreteScheduler": Scheduler.EULER_ANCESTRAL,
    "DPMSolverMultistepScheduler": Scheduler.DPM_SOLVER_PP_2M,
    "FlowMatchEulerDiscreteScheduler": Scheduler.FLOW_MATCH_EULER,
    "UniPCMultistepScheduler": Scheduler.UNI_PC,
    "DEISMultistepScheduler": Scheduler.DEIS,
    "LCMScheduler": Scheduler.LCM,
    "TCDScheduler": Scheduler.TCD,
    "SCMScheduler": Scheduler.SCM,
    "PNDMScheduler": Scheduler.DDIM,
    "DDPMScheduler": Scheduler.DDIM,
    "LMSDiscreteScheduler": Scheduler.EULER,
    "HeunDiscreteScheduler": Scheduler.HEUN,
    "KDPM2DiscreteScheduler": Scheduler.EULER,
    "KDPM2AncestralDiscreteScheduler": Scheduler.EULER_ANCESTRAL,
    "DPMSolverSinglestepScheduler": Scheduler.DPM_SOLVER_PP_2M,
    "DPMSolverSDEScheduler": Scheduler.DPM_SOLVER_PP_2M_SDE,
}

# The sampler of a class with `use_flow_sigmas` in its configuration.
_WITH_FLOW_SIGMAS = {Scheduler.DPM_SOLVER_PP_2M: Scheduler.FLOW_DPM_SOLVER_PP_2M}
_CONSISTENCY_BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
_CLASS_DEFAULTS: Mapping[Scheduler, Mapping[str, Any]] = {
    Scheduler.DDIM: {"timestep_spacing": "leading", "clip_sample": True},
    Scheduler.EULER: {"timestep_spacing": "linspace"},
    Scheduler.EULER_ANCESTRAL: {"timestep_spacing": "linspace"},
    Scheduler.DPM_SOLVER_PP_2M: {"timestep_spacing": "linspace"},
    Scheduler.DPM_SOLVER_PP_2M_SDE: {"timestep_spacing": "linspace"},
    Scheduler.HEUN: {"timestep_spacing": "linspace", "beta_start": 0.00085, "beta_end": 0.012},
    Scheduler.UNI_PC: {"timestep_spacing": "linspace"},
    Scheduler.DEIS: {"timestep_spacing": "linspace"},
    Scheduler.LCM: _CONSISTENCY_BETAS,
    Scheduler.TCD: _CONSISTENCY_BETAS,
}
_SPACINGS = {
    "use_karras_sigmas": SigmaSpacing.KARRAS,
    "use_exponential_sigmas": SigmaSpacing.EXPONENTIAL,
    "use_beta_sigmas": SigmaSpacing.BETA,
}
# Every timestep's values are stored; checkpoints have a thousand.
MAX_TRAIN_TIMESTEPS = 100_000
# The exponent of a shift by image size; checkpoints have 0.5 to 1.15.
_MAX_SIZE_SHIFT = 20.0
_ENUMERATIONS: Mapping[str, type[Enum]] = {
    "prediction_type": PredictionType,
    "timestep_spacing": TimestepSpacing,
    "beta_schedule": BetaSchedule,
    "solver_type": SolverType,
    "time_shift_type": TimeShift,
}


def scheduler_configs(
    class_name: str, stored: Mapping[str, Any], supported: tuple[Scheduler, ...]
) -> dict[Scheduler, SchedulerConfig]:
    """Return the schedulers that can sample a checkpoint with that scheduler class and configuration, its own first.

    Raises UnsupportedConfig, naming class or key, if its own is not `supported` or sets an unimplemented key; any other
    scheduler in `supported` is skipped in that case.
    """
    own = sampler_of(class_name, stored, supported)
    if stored.get("use_flow_sigmas"):
        stored = {"prediction_type": PredictionType.EPSILON.value, **stored}
    configs = {own: scheduler_config(own, stored)}
    for scheduler in supported:
        try:
            configs.setdefault(scheduler, scheduler_config(scheduler, stored))
        except UnsupportedConfig:
            continue
    return configs


def sampler_of(class_name: str, stored: Mapping[str, Any], supported: tuple[Scheduler, ...]) -> Scheduler:
    """Return the sampler of a scheduler class with that configuration. Raises UnsupportedConfig, naming the class, for
    one that is not `supported`."""
    own = SCHEDULER_CLASSES.get(class_name)
    if own is not None and stored.get("use_flow_sigmas"):
        own = _WITH_FLOW_SIGMAS.get(own, own)
    if own is None or own not in supported:
        raise UnsupportedConfig(f"scheduler class {class_name!r} is not one of {_known(supported)}")
    if own is Scheduler.DPM_SOLVER_PP_2M and str(stored.get("algorithm_type", "")).startswith("sde-"):
        return Scheduler.DPM_SOLVER_PP_2M_SDE
    return own


def _known(supported: tuple[Scheduler, ...]) -> str:
    """Return the classes that a checkpoint may name."""
    plain = [name for name, scheduler in SCHEDULER_CLASSES.items() if scheduler in supported]
    flows = [name for name, scheduler in SCHEDULER_CLASSES.items() if _WITH_FLOW_SIGMAS.get(scheduler) in supported]
    return ", ".join([*plain, *(f"{name} with use_flow_sigmas" for name in flows)])


def scheduler_config(scheduler: Scheduler, stored: Mapping[str, Any]) -> SchedulerConfig:
    """Return `stored` as diffusers' class for `scheduler` would read it; keys that begin with "_" are ignored.

    Raises UnsupportedConfig naming the key for any unimplemented setting that would change the image.
    """
    values = read_keys(scheduler, {key: value for key, value in stored.items() if not key.startswith("_")})
    try:
        if scheduler in FLOW_SAMPLERS:
            values = {"shift" if key == "flow_shift" else key: value for key, value in values.items()}
            return _checked_flow(FlowConfig(scheduler, **_members(values)))
        return _checked(DiffusionConfig(scheduler, **_typed({**_CLASS_DEFAULTS[scheduler], **values})))
    except UnsupportedConfig:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise UnsupportedConfig(f"a value is of the wrong type: {error}") from None


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    typed = _members(values)
    if typed.get("trained_betas") is not None:
        typed["trained_betas"] = tuple(float(beta) for beta in typed["trained_betas"])
    final_sigma = typed.pop("final_sigmas_type", "zero")
    if final_sigma not in ("zero", "sigma_min"):
        raise UnsupportedConfig(f"final_sigmas_type={final_sigma!r} is not zero or sigma_min")
    chosen = [key for key in _SPACINGS if typed.pop(key, False)]
    if len(chosen) > 1:
        raise UnsupportedConfig(f"{chosen[0]} and {chosen[1]} exclude each other")
    spacing = _SPACINGS[chosen[0]] if chosen else SigmaSpacing.TIMESTEPS
    return {**typed, "final_sigma_zero": final_sigma == "zero", "sigma_spacing": spacing}


def _members(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _member(key, value) if key in _ENUMERATIONS else value for key, value in values.items()}


def _member(key: str, value: Any) -> Enum:
    enumeration = _ENUMERATIONS[key]
    try:
        return enumeration(value)
    except ValueError:
        known = ", ".join(member.value for member in enumeration)
        raise UnsupportedConfig(f"{key}={value!r} is not one of {known}") from None


def _checked(config: DiffusionConfig) -> DiffusionConfig:
    betas = config.trained_betas or (config.beta_start, config.beta_end)
    if not all(0.0 < beta < 1.0 for beta in betas):
        raise UnsupportedConfig("betas must lie between 0 and 1")
    _check_step_count(config.num_train_timesteps)
    if config.trained_betas is not None and len(config.trained_betas) != config.num_train_timesteps:
        raise UnsupportedConfig("trained_betas must hold num_train_timesteps values")
    if not 0 <= config.steps_offset < config.num_train_timesteps:
        raise UnsupportedConfig(f"steps_offset={config.steps_offset} is not between 0 and num_train_timesteps")
    is_distilled = config.scheduler in (Scheduler.LCM, Scheduler.TCD)
    if is_distilled and not 1 <= config.original_inference_steps <= config.num_train_timesteps:
        stated = f"original_inference_steps={config.original_inference_steps}"
        raise UnsupportedConfig(f"{stated} is not between 1 and num_train_timesteps")
    if config.scheduler is Scheduler.EULER_ANCESTRAL and config.prediction_type is PredictionType.SAMPLE:
        raise UnsupportedConfig("prediction_type='sample' is not supported by the ancestral sampler")
    return config


def _check_step_count(count: int) -> None:
    if not isinstance(count, int) or not 1 <= count <= MAX_TRAIN_TIMESTEPS:
        raise UnsupportedConfig(f"num_train_timesteps={count!r} is not between 1 and {MAX_TRAIN_TIMESTEPS}")


def _checked_flow(config: FlowConfig) -> FlowConfig:
    _check_step_count(config.num_train_timesteps)
    if not 0.0 < config.shift <= 100.0:
        key = "flow_shift" if config.scheduler is Scheduler.FLOW_DPM_SOLVER_PP_2M else "shift"
        raise UnsupportedConfig(f"{key}={config.shift} is not between 0 and 100")
    if config.shift_terminal is not None and not 0.0 <= config.shift_terminal < 1.0:
        raise UnsupportedConfig(f"shift_terminal={config.shift_terminal!r} is not between 0 and 1")
    if not config.use_dynamic_shifting:
        return config
    for key in ("base_shift", "max_shift"):
        if not 0.0 < (value := getattr(config, key)) <= _MAX_SIZE_SHIFT:
            raise UnsupportedConfig(f"{key}={value!r} is not between 0 and {_MAX_SIZE_SHIFT:g}")
    if not 0 <= config.base_image_seq_len < config.max_image_seq_len:
        stated = f"max_image_seq_len={config.max_image_seq_len!r}"
        raise UnsupportedConfig(f"{stated} is not above base_image_seq_len={config.base_image_seq_len!r}")
    return config
