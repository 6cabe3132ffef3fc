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

_SPACINGS = frozenset({"use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"})
_DPM_SOLVER = _NOISE_SCHEDULE | _SPACINGS | {"final_sigmas_type", "solver_type", "lower_order_final", "euler_at_final"}
# Not all have an effect in diffusers' classes either.
_CONSISTENCY = _NOISE_SCHEDULE | {
    "original_inference_steps",
    "timestep_scaling",
    "clip_sample",
    "clip_sample_range",
    "set_alpha_to_one",
}
_FLOW = frozenset(
    {"num_train_timesteps", "shift", "use_dynamic_shifting", "base_shift", "max_shift", "base_image_seq_len",
     "max_image_seq_len", "time_shift_type", "shift_terminal"}
)  # fmt: skip

_READ: Mapping[Scheduler, frozenset[str]] = {
    Scheduler.DDIM: _NOISE_SCHEDULE | {"clip_sample", "clip_sample_range", "set_alpha_to_one"},
    Scheduler.EULER: _NOISE_SCHEDULE | _SPACINGS | {"final_sigmas_type"},
    Scheduler.EULER_ANCESTRAL: _NOISE_SCHEDULE,
    Scheduler.HEUN: (_NOISE_SCHEDULE - {"rescale_betas_zero_snr"}) | _SPACINGS | {"clip_sample", "clip_sample_range"},
    Scheduler.DPM_SOLVER_PP_2M: _DPM_SOLVER,
    Scheduler.DPM_SOLVER_PP_2M_SDE: _DPM_SOLVER,
    Scheduler.UNI_PC: _NOISE_SCHEDULE | _SPACINGS | {"final_sigmas_type", "lower_order_final"},
    Scheduler.DEIS: (_NOISE_SCHEDULE - {"rescale_betas_zero_snr"}) | _SPACINGS | {"lower_order_final"},
    Scheduler.LCM: _CONSISTENCY,
    Scheduler.TCD: _CONSISTENCY,
    Scheduler.FLOW_MATCH_EULER: _FLOW,
    Scheduler.FLOW_DPM_SOLVER_PP_2M: frozenset({"num_train_timesteps", "flow_shift"}),
    Scheduler.SCM: frozenset({"num_train_timesteps"}),
}

_OFF = (False, None)
_OTHER_SPACINGS: Mapping[str, tuple[Any, ...]] = {"use_exponential_sigmas": _OFF, "use_beta_sigmas": _OFF}
_SOLVER: Mapping[str, tuple[Any, ...]] = {
    "solver_order": (2,),
    "thresholding": _OFF,
    "use_flow_sigmas": _OFF,
    "use_dynamic_shifting": _OFF,
}
_DPM_SOLVER_FIXED: Mapping[str, tuple[Any, ...]] = {
    **_SOLVER,
    "use_lu_lambdas": _OFF,
    # The scheduler's name chooses between the two.
    "algorithm_type": ("dpmsolver++", "sde-dpmsolver++"),
    "lambda_min_clipped": (-float("inf"),),
}
# Keys that diffusers' class acts on, and the only values with the behaviour implemented here, by sampler.
_FIXED: Mapping[Scheduler, Mapping[str, tuple[Any, ...]]] = {
    Scheduler.DDIM: {"thresholding": _OFF},
    Scheduler.EULER: {
        "interpolation_type": ("linear",),
        "timestep_type": ("discrete",),
        "sigma_min": (None,),
        "sigma_max": (None,),
    },
    Scheduler.EULER_ANCESTRAL: {},
    Scheduler.HEUN: {},
    Scheduler.DPM_SOLVER_PP_2M: _DPM_SOLVER_FIXED,
    Scheduler.DPM_SOLVER_PP_2M_SDE: _DPM_SOLVER_FIXED,
    Scheduler.UNI_PC: {
        **_SOLVER,
        "solver_type": ("bh2", "midpoint", "heun", "logrho"),
        "predict_x0": (True,),
        "disable_corrector": ([], None),
        "solver_p": (None,),
        "sigma_min": (None,),
        "sigma_max": (None,),
        "shift_terminal": (None,),
    },
    Scheduler.DEIS: {
        **_SOLVER,
        "algorithm_type": ("deis", "dpmsolver", "dpmsolver++"),
        "solver_type": ("logrho", "midpoint", "heun", "bh1", "bh2"),
    },
    Scheduler.LCM: {"thresholding": _OFF},
    Scheduler.TCD: {"thresholding": _OFF},
    Scheduler.FLOW_MATCH_EULER: {
        **_OTHER_SPACINGS,
        "use_karras_sigmas": _OFF,
        "invert_sigmas": _OFF,
        "stochastic_sampling": _OFF,
    },
    Scheduler.FLOW_DPM_SOLVER_PP_2M: {
        **_OTHER_SPACINGS,
        "use_karras_sigmas": _OFF,
        "use_lu_lambdas": _OFF,
        "use_dynamic_shifting": _OFF,
        "thresholding": _OFF,
        "use_flow_sigmas": (True,),
        "prediction_type": ("flow_prediction",),
        "algorithm_type": ("dpmsolver++",),
        "solver_order": (2,),
        "solver_type": ("midpoint",),
        "final_sigmas_type": ("zero",),
    },
    Scheduler.SCM: {"prediction_type": ("trigflow",)},
}
# Keys of one class that change nothing for the sampler here: of levels that the flow's replace, of an ending that the
# level 0 has in any case, and a scale that cancels out.
_IGNORED: Mapping[Scheduler, frozenset[str]] = {
    Scheduler.FLOW_DPM_SOLVER_PP_2M: (_DPM_SOLVER | {"lambda_min_clipped"}),
    Scheduler.SCM: frozenset({"sigma_data"}),
}
# Networks of checkpoints with other values predict a variance too, with any sampler.
_FIXED_FOR_ALL: Mapping[str, tuple[Any, ...]] = {
    "variance_type": (None, "fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log")
}
# Keys that diffusers' classes for our samplers take, with an effect only together with a rejected key.
WITHOUT_EFFECT = frozenset(
    {"dynamic_thresholding_ratio", "sample_max_value", "flow_shift", "time_shift_type", "base_shift", "max_shift",
     "base_image_seq_len", "max_image_seq_len"}
)  # fmt: skip
_DPM_SOLVERS = (Scheduler.DPM_SOLVER_PP_2M, Scheduler.DPM_SOLVER_PP_2M_SDE)
# Types of other solvers, which diffusers' DPM-Solver++ reads as its own first one.
_OTHER_SOLVER_TYPES = ("logrho", "bh1", "bh2")
# Noise levels that only the spacings of Euler and UniPC read.
_END_LEVELS = ("sigma_min", "sigma_max")


def acted_on(scheduler: Scheduler) -> frozenset[str]:
    """Return the keys that diffusers' class of `scheduler` acts on."""
    return _READ[scheduler].union(_FIXED[scheduler], _IGNORED.get(scheduler, ()))


def read_keys(scheduler: Scheduler, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that `scheduler` reads. Raises UnsupportedConfig naming the first key with an unimplemented
    value."""
    values = dict(stored)
    if scheduler in _DPM_SOLVERS and values.get("solver_type") in _OTHER_SOLVER_TYPES:
        values["solver_type"] = "midpoint"
    if scheduler in (Scheduler.EULER, Scheduler.UNI_PC) and not any(values.get(key) for key in _SPACINGS):
        values = {key: value for key, value in values.items() if key not in _END_LEVELS}
    fixed = {**_FIXED_FOR_ALL, **_FIXED[scheduler]}
    for key, value in values.items():
        if key in fixed and value not in fixed[key]:
            raise UnsupportedConfig(f"{key}={value!r} is not supported, only {fixed[key][0]!r}")
    return {key: value for key, value in values.items() if key in _READ[scheduler]}
