"""Build the schedule of any sampler. Schedules are immutable, so equal ones are built once."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module

from pentimento.diffusion.schedulers.config import FLOW_SAMPLERS, SchedulerConfig
from pentimento.diffusion.schedulers.schedule import Schedule, StepSequence, first_pass, level_count
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import WITH_ETA, NoiseForm, Scheduler

# The samplers of most families with flow matching.
FLOW_SCHEDULERS = (Scheduler.FLOW_MATCH_EULER,)
DIFFUSION_SCHEDULERS = tuple(one for one in Scheduler if one not in FLOW_SAMPLERS)
# The module of each sampler, and its function that builds a schedule; imported with the first model that offers it.
_MAKERS = {
    Scheduler.DDIM: ("ddim", "make_ddim_schedule"),
    Scheduler.LCM: ("consistency", "make_consistency_schedule"),
    Scheduler.TCD: ("consistency", "make_consistency_schedule"),
    Scheduler.DPM_SOLVER_PP_2M: ("dpm_solver", "make_dpm_solver_schedule"),
    Scheduler.DPM_SOLVER_PP_2M_SDE: ("dpm_solver", "make_dpm_solver_schedule"),
    Scheduler.UNI_PC: ("uni_pc", "make_uni_pc_schedule"),
    Scheduler.HEUN: ("heun", "make_heun_schedule"),
    Scheduler.DEIS: ("deis", "make_deis_schedule"),
    Scheduler.EULER: ("euler", "make_euler_schedule"),
    Scheduler.EULER_ANCESTRAL: ("euler", "make_euler_schedule"),
    Scheduler.FLOW_MATCH_EULER: ("flow_match_euler", "make_flow_match_euler_schedule"),
    Scheduler.FLOW_DPM_SOLVER_PP_2M: ("flow_solvers", "make_flow_dpm_solver_schedule"),
    Scheduler.SCM: ("flow_solvers", "make_scm_schedule"),
}


@lru_cache(maxsize=256)
def make_schedule(
    config: SchedulerConfig,
    step_count: int,
    eta: float,
    thinned_steps: tuple[int, ...] = (),
    bridge: tuple[int, ...] = (),
) -> Schedule:
    """Return the schedule of `config.scheduler`; from `thinned_steps[0]` on only these steps are taken, and the steps
    of a `bridge` at other levels (`StepSequence`). Raises InvalidArgument for steps that do not fit, or an eta that the
    scheduler does not use."""
    if eta != 0.0 and config.scheduler not in WITH_ETA:
        raise InvalidArgument.of("eta", f"must be 0 with scheduler {config.scheduler.value}, got {eta}")
    try:
        order = StepSequence(step_count, thinned_steps, bridge)
    except ValueError as error:
        raise InvalidArgument.of("thinned_steps", str(error)) from None
    try:
        return _maker(config.scheduler)(config, order, *((eta,) if config.scheduler in WITH_ETA else ()))
    except ValueError as error:
        raise InvalidArgument.of("num_inference_steps", str(error)) from None


def load_samplers(schedulers: Iterable[Scheduler]) -> None:
    """Import the modules of the samplers that a model offers: none is imported while it serves."""
    for scheduler in schedulers:
        _maker(scheduler)


def _maker(scheduler: Scheduler) -> Callable[..., Schedule]:
    module, name = _MAKERS[scheduler]
    maker: Callable[..., Schedule] = getattr(import_module(f"pentimento.diffusion.schedulers.{module}"), name)
    return maker


def first_img2img_step(
    step_count: int, strength: float, noise_form: NoiseForm, scheduler: Scheduler | None = None
) -> int:
    """Return the first step of img2img, by diffusers' rules: about `steps * strength` steps remain, rounded down for
    diffusion models and up for flows. Heun's begin at a noise level."""
    if scheduler is Scheduler.HEUN:
        levels = level_count(step_count)
        return first_pass(levels - max(int(levels * strength), 1), step_count)
    if noise_form is NoiseForm.FLOW_MATCHING:
        return int(max(step_count - min(step_count * strength, step_count), 0))
    return step_count - min(int(step_count * strength), step_count)
