"""Build the schedule of any sampler. Schedules are immutable, so equal ones are built once."""

from functools import lru_cache

from pentimento.diffusion.schedulers.config import FlowConfig, SchedulerConfig
from pentimento.diffusion.schedulers.ddim import make_ddim_schedule
from pentimento.diffusion.schedulers.dpm_solver import make_dpm_solver_schedule
from pentimento.diffusion.schedulers.euler import make_euler_schedule
from pentimento.diffusion.schedulers.flow_match_euler import make_flow_match_euler_schedule
from pentimento.diffusion.schedulers.schedule import Schedule, StepSequence
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler

DIFFUSION_SCHEDULERS = (Scheduler.DDIM, Scheduler.EULER, Scheduler.EULER_ANCESTRAL, Scheduler.DPM_SOLVER_PP_2M)
FLOW_SCHEDULERS = (Scheduler.FLOW_MATCH_EULER,)


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
    if eta != 0.0 and config.scheduler is not Scheduler.DDIM:
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
        return make_flow_match_euler_schedule(config, order)
    if config.scheduler is Scheduler.DDIM:
        return make_ddim_schedule(config, order, eta)
    if config.scheduler is Scheduler.DPM_SOLVER_PP_2M:
        return make_dpm_solver_schedule(config, order)
    return make_euler_schedule(config, order)
