"""Build the schedule of any sampler. Schedules are immutable, so equal ones are built once."""

from functools import lru_cache

from pentimento.diffusion.schedulers.config import FLOW_SAMPLERS, FlowConfig, SchedulerConfig
from pentimento.diffusion.schedulers.consistency import make_consistency_schedule
from pentimento.diffusion.schedulers.ddim import make_ddim_schedule
from pentimento.diffusion.schedulers.deis import make_deis_schedule
from pentimento.diffusion.schedulers.dpm_solver import make_dpm_solver_schedule
from pentimento.diffusion.schedulers.euler import make_euler_schedule
from pentimento.diffusion.schedulers.flow_match_euler import make_flow_match_euler_schedule
from pentimento.diffusion.schedulers.flow_solvers import make_flow_dpm_solver_schedule, make_scm_schedule
from pentimento.diffusion.schedulers.heun import first_pass, level_count, make_heun_schedule
from pentimento.diffusion.schedulers.schedule import Schedule, StepSequence
from pentimento.diffusion.schedulers.uni_pc import make_uni_pc_schedule
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import WITH_ETA, NoiseForm, Scheduler

# The samplers of most families with flow matching.
FLOW_SCHEDULERS = (Scheduler.FLOW_MATCH_EULER,)
DIFFUSION_SCHEDULERS = tuple(one for one in Scheduler if one not in FLOW_SAMPLERS)


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
        return _make(config, order, eta)
    except ValueError as error:
        raise InvalidArgument.of("num_inference_steps", str(error)) from None


def _make(config: SchedulerConfig, order: StepSequence, eta: float) -> Schedule:
    if isinstance(config, FlowConfig):
        return _make_flow(config, order)
    match config.scheduler:
        case Scheduler.DDIM:
            return make_ddim_schedule(config, order, eta)
        case Scheduler.LCM | Scheduler.TCD:
            return make_consistency_schedule(config, order, eta)
        case Scheduler.DPM_SOLVER_PP_2M | Scheduler.DPM_SOLVER_PP_2M_SDE:
            return make_dpm_solver_schedule(config, order)
        case Scheduler.UNI_PC:
            return make_uni_pc_schedule(config, order)
        case Scheduler.HEUN:
            return make_heun_schedule(config, order)
        case Scheduler.DEIS:
            return make_deis_schedule(config, order)
        case _:
            return make_euler_schedule(config, order)


def _make_flow(config: FlowConfig, order: StepSequence) -> Schedule:
    match config.scheduler:
        case Scheduler.FLOW_DPM_SOLVER_PP_2M:
            return make_flow_dpm_solver_schedule(config, order)
        case Scheduler.SCM:
            return make_scm_schedule(config, order)
        case _:
            return make_flow_match_euler_schedule(config, order)


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
