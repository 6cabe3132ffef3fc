"""What every sampler offers: a frozen schedule, an explicit state, and pure functions between states."""

import math
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from pentimento.domain.generation import Scheduler


@dataclass(frozen=True)
class SamplerState:
    """A picture in the making: its latent (1, channels, height, width) before step `step_index`, and for multistep
    samplers the clean latent predicted one step earlier, None after a start."""

    latent: Tensor
    step_index: int
    previous_clean: Tensor | None = None


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
