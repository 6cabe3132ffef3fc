"""Define the interface of samplers: a frozen schedule, an explicit state, and pure functions between states;
build the schedule of any sampler. Schedules are immutable, so equal ones are built once."""

import math
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module

from torch import Tensor

from pentimento.diffusion.schedulers.config import FLOW_SAMPLERS, FlowConfig, SchedulerConfig
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import WITH_ETA, NoiseForm, Scheduler
from pentimento.domain.thinned_steps import check_thinned_steps, taken_count


@dataclass(frozen=True)
class SamplerState:
    """Hold an image's latent (1, channels, height, width) before step `step_index`, and for multistep samplers the
    network's outputs of earlier steps in the sampler's own form, none after a start."""

    latent: Tensor
    step_index: int
    earlier: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class StepSequence:
    """Select the steps taken of `step_count`: all, or from `thinned[0]` on only those in `thinned`. A step keeps its
    number and its noise level; each step leads to the level of the next step taken.

    With a `bridge` of n + 1 steps the last n steps before `bridge[-1]` are taken at the noise levels of the steps
    `bridge[:-1]`: a re-noised start returns in few steps to its point in the schedule.

    Raises ValueError for `thinned` or a `bridge` that are not ascending steps of the schedule."""

    step_count: int
    thinned: tuple[int, ...] = ()
    bridge: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for steps in (self.thinned, self.bridge):
            if steps:
                check_thinned_steps(steps, self.step_count)

    def after(self, step: int) -> int:
        """Return the step taken after `step`; `step_count` after the last."""
        place = bisect_right(self.thinned, step)
        if not place:
            return step + 1
        return self.thinned[place] if place < len(self.thinned) else self.step_count

    def before(self, step: int) -> int:
        """Return the step taken before `step`; -1 before the first."""
        place = bisect_left(self.thinned, step)
        return self.thinned[place - 1] if place else step - 1

    def count_from(self, step: int) -> int:
        """Return the number of steps taken from `step` on."""
        return taken_count(self.thinned, self.step_count, step)

    def level_of(self, step: int) -> int:
        """Return the step of the whole schedule with the noise level at which `step` begins; `step_count` for the
        end."""
        place = step - self.bridge[-1] - 1 if self.bridge else 0
        return self.bridge[place] if -len(self.bridge) <= place < 0 else step

    @property
    def levels(self) -> list[int]:
        """Return `level_of` every step: the step itself, except in a bridge. It indexes arrays of levels."""
        return [self.level_of(step) for step in range(self.step_count)]

    @property
    def landings(self) -> list[int]:
        """Return for every step the step of the whole schedule with the same end level: itself if all are taken. It
        indexes arrays of the levels after each step."""
        return [self.level_of(self.after(step)) - 1 for step in range(self.step_count)]


@dataclass(frozen=True)
class Schedule(ABC):
    """Hold the steps of one sampler. `timesteps` are the network's, (step_count,). `sigmas` are the noise levels of the
    latent before each step, as the ratio of noise to signal: sqrt((1 - abar) / abar), or sigma / (1 - sigma) of a flow,
    infinite if no signal is left. With `needs_noise`, `advance` takes fresh noise at every step.

    Latents are in the sampler's own scale, by default at unit variance, their stored form."""

    timesteps: Tensor
    sigmas: tuple[float, ...]
    order: StepSequence
    config: SchedulerConfig
    needs_noise: bool = field(default=False, kw_only=True)

    @property
    def scheduler(self) -> Scheduler:
        """Return the scheduler of the steps."""
        return self.config.scheduler

    @property
    def step_count(self) -> int:
        """Return the number of steps."""
        return self.order.step_count

    def initial_latent(self, noise: Tensor) -> Tensor:
        """Return unit noise as the latent before step 0."""
        return noise

    @abstractmethod
    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        """Return a clean latent re-noised to the level before `step_index` (MoDM, section 5.1)."""

    def fill_model_input(self, state: SamplerState, out: Tensor) -> None:
        """Write the latent, scaled for the network, into every row of `out` (rows, channels, height, width)."""
        out.copy_(state.latent)

    @abstractmethod
    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Take one step: return the next state and the predicted clean latent."""

    def to_variance_preserving(self, state: SamplerState) -> Tensor:
        """Return the latent in its stored form, the same for all samplers of a model: at unit variance, unchanged for a
        flow."""
        return state.latent

    def from_variance_preserving(self, latent: Tensor, step_index: int) -> SamplerState:
        """Return a stored latent as the state before `step_index`."""
        return SamplerState(latent, step_index)


def nearest_step(schedule: Schedule, sigma: float, relative_tolerance: float = 0.01) -> int | None:
    """Return the step that starts at noise level `sigma`, None if no step is within the tolerance: joining a schedule
    at another level than the latent's would leave noise in the image or remove detail."""
    distances = [abs(math.log(level / sigma)) for level in schedule.sigmas]
    step = min(range(schedule.step_count), key=distances.__getitem__)
    return step if distances[step] <= relative_tolerance else None


def level_count(step_count: int) -> int:
    """Return the number of noise levels, diffusers' steps, of Heun's schedule with `step_count` passes."""
    return step_count // 2 + 1


def first_pass(level: int, step_count: int) -> int:
    """Return the pass of Heun's schedule that begins at a level; a run may begin there."""
    return max(2 * level - (step_count % 2 == 0), 0)


def renoised_latent(schedule: Schedule, stored: Tensor, from_step: int, to_step: int, noise: Tensor) -> Tensor:
    """Return a `stored` latent, at the level before `from_step`, re-noised to the level before `to_step`. `noise` has
    its shape and unit variance. Raises ValueError for a `to_step` after `from_step`.

    A latent before step K is a·x + b·e, with the signal's share a and the noise's share b of its level. The forward
    process takes it to a noisier level (a', b') as r·latent + sqrt(b'^2 - r^2 b^2)·noise, r = a' / a: the result has
    the distribution of x re-noised directly to (a', b') (Ho et al. 2020, equation 4, between two levels; for flows the
    same with their shares). NIRVANA, appendix C asks for fresh seeds after retrieval; with a deterministic sampler a
    new seed would change nothing.
    """
    if not 0 <= to_step <= from_step:
        raise ValueError(f"a latent of step {from_step} cannot be re-noised to step {to_step}")
    if to_step == from_step:
        return stored
    signal, loudness = _shares(schedule, from_step)
    signal_to, loudness_to = _shares(schedule, to_step)
    kept = signal_to / signal
    added = math.sqrt(max(loudness_to**2 - (kept * loudness) ** 2, 0.0))
    return kept * stored + added * noise


def _shares(schedule: Schedule, step: int) -> tuple[float, float]:
    """Return the shares of signal and noise in a stored latent before the step: their squares sum to 1; for a flow the
    shares themselves do."""
    ratio = schedule.sigmas[step]
    if math.isinf(ratio):
        return 0.0, 1.0
    whole = 1.0 + ratio if isinstance(schedule.config, FlowConfig) else math.hypot(1.0, ratio)
    return 1.0 / whole, ratio / whole


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
