"""How many of a picture's remaining steps are taken when there is no time for all of them: thinning.

A schedule of n steps is thinned from step i on: of its n - i remaining steps m are taken, the one at i first, evenly
spaced or closer together at the beginning, where a picture is decided (`spacing`). What that does to the picture is
measured for each model (`thinning_profiling`); only what kept the quality asked for is an option here. No option, no
thinning. The live dataplane, emulated and simulated runs decide by `choose`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from pentimento.domain.thinned_steps import ThinnableSteps

# A product that is a whole number may come out a hair below it.
_ROUNDING = 1e-9


class ThinningMode(Enum):
    """Of a deployment: never, to meet a request's deadline, also where more is asked for than can be painted, or
    always, as many as may be."""

    OFF = "off"
    DEADLINE = "deadline"
    LOAD = "load"
    ALWAYS = "always"


class WholeReason(Enum):
    """Why all steps of a request are taken, whatever the load."""

    OFF = "THINNING_OFF"
    REPLAY = "REPLAYED"
    BINDING_STEPS = "BINDING_STEPS"
    QUALITY_ASKED = "QUALITY_ASKED"
    PROFILE_MISSING = "PROFILE_MISSING"
    PROFILE_PROMISES_LESS = "PROFILE_PROMISES_LESS"
    HIT_UNMEASURED = "HIT_UNMEASURED"
    LORAS_UNMEASURED = "LORAS_UNMEASURED"
    LORAS_LATE = "LORAS_LATE"
    CONTROLNETS_UNMEASURED = "CONTROLNETS_UNMEASURED"
    RESIDUALS_PIPELINED = "RESIDUALS_PIPELINED"
    IMAGE_UNMEASURED = "IMAGE_UNMEASURED"
    SCHEDULER_UNMEASURED = "SCHEDULER_UNMEASURED"
    GUIDANCE_UNMEASURED = "GUIDANCE_UNMEASURED"
    STEPS_UNMEASURED = "STEPS_UNMEASURED"
    NOTHING_ALLOWED = "NOTHING_ALLOWED"


@dataclass(frozen=True)
class ThinningRefusal:
    """That nothing of a request is left out, and why, in a sentence without its end."""

    reason: WholeReason
    message: str


@dataclass(frozen=True)
class ThinningOption:
    """A thinning that was measured and keeps the quality asked for: from `first_step` on `taken_count` steps are taken
    instead of all. `share` is the mean share of the full run's quality that it kept. With a `spacing` of 1 the steps
    are evenly spaced; with p place j of m lies at (j / m) ** p of the rest, so that the gaps grow."""

    first_step: int
    taken_count: int
    share: float
    spacing: float = 1.0

    @property
    def total(self) -> int:
        """The steps of a picture from noise that is thinned so."""
        return self.first_step + self.taken_count


@dataclass(frozen=True)
class ThinningOffer:
    """What of one request's steps may be left out: it has `step_count` steps, and `next_step` of them are behind it.
    Without options nothing may."""

    step_count: int
    next_step: int = 0
    options: tuple[ThinningOption, ...] = ()

    @property
    def remaining_count(self) -> int:
        """The steps that remain without thinning."""
        return self.step_count - self.next_step

    @property
    def least_share(self) -> float:
        """The share, 0..1, of the remaining steps that have to be taken at the least."""
        return self.least_count / self.remaining_count if self.options else 1.0

    def remaining_with(self, option: ThinningOption) -> int:
        """Return the steps that remain with a thinning."""
        return option.total - self.next_step

    @property
    def usable(self) -> tuple[ThinningOption, ...]:
        """The options that begin at the next step or later, and leave steps out."""
        return tuple(
            option
            for option in self.options
            if option.first_step >= self.next_step and self.remaining_with(option) < self.remaining_count
        )

    @property
    def least_count(self) -> int:
        """The fewest steps that may remain."""
        return min((self.remaining_with(option) for option in self.usable), default=self.remaining_count)


WHOLE = ThinningOffer(0)
"""Of a request of which nothing may be left out."""


@dataclass(frozen=True)
class Pressure:
    """How much time there is: seconds of a step where the request runs, None where that is not known; seconds that are
    left for its steps, None without a deadline; whether more is asked of the device's pool than it can paint."""

    step_s: float | None
    remaining_s: float | None = None
    overloaded: bool = False


def choose(mode: ThinningMode, offer: ThinningOffer, pressure: Pressure) -> ThinningOption | None:
    """Return how a request's remaining steps are thinned; None where all of them are taken.

    The fewest steps are taken always, or under load, where the mode says so. Otherwise, where the deadline leaves time
    for `remaining_s / step_s` steps, it is the thinning that keeps most of those that need no more; the fewest steps
    where none is so short.
    """
    options = offer.usable
    if mode is ThinningMode.OFF or not options:
        return None
    if takes_fewest(mode, pressure.overloaded):
        return _fewest(options)
    affordable = _affordable(pressure)
    if offer.remaining_count <= affordable:
        return None
    fitting = [option for option in options if offer.remaining_with(option) <= affordable]
    return max(fitting, key=lambda option: (option.share, option.total)) if fitting else _fewest(options)


def takes_fewest(mode: ThinningMode, overloaded: bool) -> bool:
    """Return whether as many steps are left out as may be, whatever the deadline."""
    return mode is ThinningMode.ALWAYS or (mode is ThinningMode.LOAD and overloaded)


def thinnable(mode: ThinningMode, offer: ThinningOffer) -> ThinnableSteps:
    """Return what of a request's steps may be left out under load, and the quality that goes with them, as plans weigh
    it: nothing may where the mode leaves out no steps under load, and nothing is lost by a plan where they are left out
    in any case."""
    usable = offer.usable if mode in (ThinningMode.LOAD, ThinningMode.ALWAYS) else ()
    if not usable:
        return ThinnableSteps(1)
    fewest = _fewest(usable)
    spare = 1.0 - offer.remaining_with(fewest) / offer.remaining_count
    return ThinnableSteps(1, spare, 0.0 if mode is ThinningMode.ALWAYS else max(0.0, 1.0 - fewest.share))


def _fewest(options: Iterable[ThinningOption]) -> ThinningOption:
    return min(options, key=lambda option: (option.total, -option.share))


def _affordable(pressure: Pressure) -> float:
    """The steps that there is time for."""
    if pressure.remaining_s is None or not pressure.step_s or pressure.step_s <= 0.0:
        return float("inf")
    return max(pressure.remaining_s, 0.0) / pressure.step_s


def thinned_steps(option: ThinningOption, step_count: int) -> tuple[int, ...]:
    """Return the steps that are taken from the option's first one on, ascending: over the rest of a schedule of
    `step_count` by the option's spacing, none twice. Raises ValueError where there are not so many."""
    first, taken = option.first_step, option.taken_count
    rest = step_count - first
    if not 0 < taken <= rest:
        raise ValueError(f"{taken} of {rest} remaining steps cannot be taken")
    steps: list[int] = []
    for place in range(taken):
        step = first + int(rest * (place / taken) ** option.spacing + _ROUNDING)
        steps.append(max(step, steps[-1] + 1) if steps else step)
    return tuple(steps)


def scaled(option: ThinningOption, measured_count: int, step_count: int) -> ThinningOption:
    """Return an option of a schedule of `measured_count` steps for one of `step_count`, not fewer: the same shares of
    the schedule, rounded up, so that its steps lie no further apart than those that were measured. Raises ValueError
    for fewer steps, of which nothing was measured."""
    if step_count < measured_count:
        raise ValueError(f"measured with {measured_count} steps, not with {step_count}")
    first, taken = (-(-count * step_count // measured_count) for count in (option.first_step, option.taken_count))
    return replace(option, first_step=first, taken_count=min(taken, step_count - first))
