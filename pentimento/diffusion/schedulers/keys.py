"""Define the keys of a scheduler configuration that each sampler reads, and the keys it supports at fixed values only.

A stored configuration holds the keys of the class that wrote it, and keys left by other classes. As diffusers' classes
do, a sampler reads the keys it takes and ignores the rest.
"""

from collections.abc import Mapping
from typing import Any

from pentimento.domain.generation import Scheduler


class UnsupportedConfig(ValueError):
    """Report an unsupported configuration; the message names the key and the value."""


_NOISE_SCHEDULE = frozenset(
    {"num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas", "rescale_betas_zero_snr",
     "prediction_type", "timestep_spacing", "steps_offset"}
)  # fmt: skip

_READ: Mapping[Scheduler, frozenset[str]] = {
    Scheduler.DDIM: _NOISE_SCHEDULE | {"clip_sample", "clip_sample_range", "set_alpha_to_one"},
    Scheduler.EULER: _NOISE_SCHEDULE | {"final_sigmas_type", "use_karras_sigmas"},
    Scheduler.EULER_ANCESTRAL: _NOISE_SCHEDULE,
    Scheduler.DPM_SOLVER_PP_2M: _NOISE_SCHEDULE
    | {"final_sigmas_type", "use_karras_sigmas", "solver_type", "lower_order_final", "euler_at_final"},
    Scheduler.FLOW_MATCH_EULER: frozenset({"num_train_timesteps", "shift"}),
}

_OFF = (False, None)
_OTHER_SPACINGS: Mapping[str, tuple[Any, ...]] = {
    "use_exponential_sigmas": _OFF,
    "use_beta_sigmas": _OFF,
}
# Keys that diffusers' class acts on, and the only values with the behaviour implemented here, by sampler.
_FIXED: Mapping[Scheduler, Mapping[str, tuple[Any, ...]]] = {
    Scheduler.DDIM: {"thresholding": _OFF},
    Scheduler.EULER: {
        **_OTHER_SPACINGS,
        "interpolation_type": ("linear",),
        "timestep_type": ("discrete",),
        "sigma_min": (None,),
        "sigma_max": (None,),
    },
    Scheduler.EULER_ANCESTRAL: {},
    Scheduler.DPM_SOLVER_PP_2M: {
        **_OTHER_SPACINGS,
        "use_lu_lambdas": _OFF,
        "use_flow_sigmas": _OFF,
        "use_dynamic_shifting": _OFF,
        "thresholding": _OFF,
        "algorithm_type": ("dpmsolver++",),
        "solver_order": (2,),
        "lambda_min_clipped": (-float("inf"),),
    },
    Scheduler.FLOW_MATCH_EULER: {
        **_OTHER_SPACINGS,
        "use_karras_sigmas": _OFF,
        "use_dynamic_shifting": _OFF,
        "invert_sigmas": _OFF,
        "shift_terminal": (None,),
        "stochastic_sampling": _OFF,
    },
}
# Networks of checkpoints with other values predict a variance too, with any sampler.
_FIXED_FOR_ALL: Mapping[str, tuple[Any, ...]] = {
    "variance_type": (None, "fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log"),
}
# Keys that diffusers' classes for our samplers take, with an effect only together with a rejected key.
WITHOUT_EFFECT = frozenset(
    {"dynamic_thresholding_ratio", "sample_max_value", "flow_shift", "time_shift_type", "base_shift", "max_shift",
     "base_image_seq_len", "max_image_seq_len"}
)  # fmt: skip
# Types of other solvers, which diffusers' DPM-Solver++ reads as its own first one.
_OTHER_SOLVER_TYPES = ("logrho", "bh1", "bh2")
# Noise levels that only Euler's spacings read.
_EULER_LEVELS = ("sigma_min", "sigma_max")
_EULER_SPACINGS = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas")


def acted_on(scheduler: Scheduler) -> frozenset[str]:
    """Return the keys that diffusers' class of `scheduler` acts on."""
    return _READ[scheduler].union(_FIXED[scheduler])


def read_keys(scheduler: Scheduler, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that `scheduler` reads. Raises UnsupportedConfig naming the first key with an unimplemented
    value."""
    values = dict(stored)
    if values.get("solver_type") in _OTHER_SOLVER_TYPES:
        values["solver_type"] = "midpoint"
    if scheduler is Scheduler.EULER and not any(values.get(key) for key in _EULER_SPACINGS):
        values = {key: value for key, value in values.items() if key not in _EULER_LEVELS}
    fixed = {**_FIXED_FOR_ALL, **_FIXED[scheduler]}
    for key, value in values.items():
        if key in fixed and value not in fixed[key]:
            raise UnsupportedConfig(f"{key}={value!r} is not supported, only {fixed[key][0]!r}")
    return {key: value for key, value in values.items() if key in _READ[scheduler]}
