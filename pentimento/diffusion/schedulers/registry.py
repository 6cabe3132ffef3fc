"""The samplers there are. Schedules are immutable, so equal ones are made once."""

from functools import lru_cache

from pentimento.diffusion.schedulers.config import SchedulerConfig
from pentimento.diffusion.schedulers.ddim import make_ddim_schedule
from pentimento.diffusion.schedulers.euler import make_euler_schedule
from pentimento.diffusion.schedulers.schedule import Schedule
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler

SUPPORTED_SCHEDULERS = (Scheduler.DDIM, Scheduler.EULER)


@lru_cache(maxsize=64)
def make_schedule(config: SchedulerConfig, step_count: int, eta: float) -> Schedule:
    """The schedule of `config.scheduler`. InvalidArgument for steps that do not fit, or an eta it has no use for."""
    try:
        if config.scheduler is Scheduler.DDIM:
            return make_ddim_schedule(config, step_count, eta)
        if eta != 0.0:
            raise InvalidArgument.of("eta", f"must be 0 with scheduler {config.scheduler.value}, got {eta}")
        return make_euler_schedule(config, step_count)
    except ValueError as error:
        raise InvalidArgument.of("num_inference_steps", str(error)) from None
