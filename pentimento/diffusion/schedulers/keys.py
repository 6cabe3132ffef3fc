"""Which keys of a scheduler configuration each sampler reads, which it needs at one value, and which are harmless.

A stored configuration holds the keys of the class that wrote it; diffusers' other classes read the ones they know and
pass over the rest, and so do we. A key that nobody knows is refused: it might change the picture.
"""

from collections.abc import Mapping
from typing import Any

from pentimento.domain.generation import Scheduler


class UnsupportedConfig(ValueError):
    """A configuration asks for what this build does not do; the message names the key and the value."""


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
# By sampler: the keys it would act on, and the only values at which it does what we do.
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
# Networks of these checkpoints predict a variance too, whichever sampler runs them.
_FIXED_FOR_ALL: Mapping[str, tuple[Any, ...]] = {
    "variance_type": (None, "fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log"),
}
# Take effect only beside a key that is refused, or in samplers that we do not run.
_HARMLESS = frozenset(
    {"dynamic_thresholding_ratio", "sample_max_value", "flow_shift", "time_shift_type", "skip_prk_steps", "base_shift",
     "max_shift", "base_image_seq_len", "max_image_seq_len"}
)  # fmt: skip
_KNOWN = _HARMLESS.union(_FIXED_FOR_ALL, *_READ.values(), *_FIXED.values())


def read_keys(scheduler: Scheduler, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that `scheduler` reads. Raises UnsupportedConfig naming the first that is refused."""
    fixed = {**_FIXED_FOR_ALL, **_FIXED[scheduler]}
    for key, value in stored.items():
        if key not in _KNOWN:
            raise UnsupportedConfig(f"key {key!r} is not supported")
        if key in fixed and value not in fixed[key]:
            raise UnsupportedConfig(f"{key}={value!r} is not supported, only {fixed[key][0]!r}")
    return {key: value for key, value in stored.items() if key in _READ[scheduler]}
