"""What every sampler offers: a frozen schedule, an explicit state, and pure functions between states."""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pentimento.domain.generation import Scheduler
from pentimento.domain.thinned_steps import check_thinned_steps, taken_count


@dataclass(frozen=True)
class SamplerState:
    """A picture in the making: its latent (1, channels, height, width) before step `step_index`, and for multistep
    samplers the clean latent predicted one step earlier, None after a start."""

    latent: Tensor
    step_index: int
    previous_clean: Tensor | None = None


@dataclass(frozen=True)
class StepSequence:
    """Which of `step_count` steps are taken: all, or from `thinned[0]` on those of `thinned` alone. A step keeps its
    number, and with it its noise level; one that is taken goes on to the level of the next one that is.

    With a `bridge` of n + 1 steps the last n steps before `bridge[-1]` are taken at the noise levels of the steps
    `bridge[:-1]`: a start that is noised again has few steps back to where it enters the schedule.

    Raises ValueError for `thinned` or a `bridge` that are not ascending steps of the schedule."""

    step_count: int
    thinned: tuple[int, ...] = ()
    bridge: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for steps in (self.thinned, self.bridge):
            if steps:
                check_thinned_steps(steps, self.step_count)

    def after(self, step: int) -> int:
        """Return the step that is taken after `step`; `step_count` after the last."""
        place = bisect_right(self.thinned, step)
        if not place:
            return step + 1
        return self.thinned[place] if place < len(self.thinned) else self.step_count

    def before(self, step: int) -> int:
        """Return the step that is taken before `step`, -1 before the first."""
        place = bisect_left(self.thinned, step)
        return self.thinned[place - 1] if place else step - 1

    def count_from(self, step: int) -> int:
        """Return how many steps are taken from `step` on."""
        return taken_count(self.thinned, self.step_count, step)

    def level_of(self, step: int) -> int:
        """Return the step of the whole schedule whose noise level `step` begins at; `step_count` for the end."""
        place = step - self.bridge[-1] - 1 if self.bridge else 0
        return self.bridge[place] if -len(self.bridge) <= place < 0 else step

    @property
    def levels(self) -> list[int]:
        """By step the one whose noise level it begins at: itself but for those of a bridge. For arrays of levels."""
        return [self.level_of(step) for step in range(self.step_count)]

    @property
    def landings(self) -> list[int]:
        """By step the one whose end is the end of that step: itself where all are taken. For arrays of what follows
        each step."""
        return [self.level_of(self.after(step)) - 1 for step in range(self.step_count)]


class Schedule(Protocol):
    """`step_count` steps of one sampler. Latents are in the sampler's own scale except where stated."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that these steps are of."""
        ...

    @property
    def step_count(self) -> int:
        """How many steps there are."""
        ...

    @property
    def order(self) -> StepSequence:
        """Which of them are taken, one after the other."""
        ...

    @property
    def timesteps(self) -> Tensor:
        """What the network is conditioned on: (step_count,)."""
        ...

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise level of the latent before each step, as the ratio of noise to signal: sqrt((1 - abar) / abar), or
        sigma / (1 - sigma) of a flow, infinite where no signal is left."""
        ...

    @property
    def needs_noise(self) -> bool:
        """Whether `advance` wants fresh noise at every step."""
        ...

    def initial_latent(self, noise: Tensor) -> Tensor:
        """Return unit noise as the latent before step 0."""
        ...

    def noised_latent(self, clean: Tensor, noise: Tensor, step_index: int) -> Tensor:
        """Return a clean latent re-noised to the level before `step_index` (MoDM, section 5.1)."""
        ...

    def fill_model_input(self, state: SamplerState, out: Tensor) -> None:
        """Write the latent as the network wants it into every row of `out` (rows, channels, height, width)."""
        ...

    def advance(self, state: SamplerState, prediction: Tensor, noise: Tensor | None) -> tuple[SamplerState, Tensor]:
        """Take one step: return the next state, and the clean latent that the network now predicts."""
        ...

    def to_variance_preserving(self, state: SamplerState) -> Tensor:
        """Return the latent in the form that is stored, one for all samplers of a model: at unit variance, of a flow as
        is."""
        ...

    def from_variance_preserving(self, latent: Tensor, step_index: int) -> SamplerState:
        """Return a stored latent as the state before `step_index`."""
        ...


def nearest_step(schedule: Schedule, sigma: float, relative_tolerance: float = 0.01) -> int | None:
    """Return the step at whose start latents have noise level `sigma`, None when no step is that near: joining a
    schedule at another level than the latent's own would leave noise in the picture or take detail out of it."""
    distances = [abs(math.log(level / sigma)) for level in schedule.sigmas]
    step = min(range(schedule.step_count), key=distances.__getitem__)
    return step if distances[step] <= relative_tolerance else None
