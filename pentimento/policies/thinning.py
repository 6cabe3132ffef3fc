"""Choose the remaining steps that an image skips if there is no time for all: thinning.

A schedule of n steps is thinned from step i on: m of its n - i remaining steps are taken, step i first, evenly spaced
or closer together at the beginning, which decides the image (`spacing`). The effect on the image is measured for each
model (`thinning_profiling`); only thinnings that kept the requested quality are options. Without options no step is
skipped. The live dataplane, emulated and simulated runs decide by `choose`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from pentimento.domain.thinned_steps import ThinnableSteps

# Rounding may put an integral product slightly below the integer.
_ROUNDING = 1e-9


class ThinningMode(Enum):
    """State when a deployment skips steps: never, to meet a request's deadline, also under overload, or always as many
    as possible."""

    OFF = "off"
    DEADLINE = "deadline"
    LOAD = "load"
    ALWAYS = "always"


class WholeReason(Enum):
    """State why a request takes all steps under any load."""

    OFF = "THINNING_OFF"
    NOT_ASKED = "NOT_ASKED"
    REPLAY = "REPLAYED"
    BINDING_STEPS = "BINDING_STEPS"
    COMPARED = "COMPARED"
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
    """State why a request skips no step; `message` is a sentence without a full stop."""

    reason: WholeReason
    message: str


@dataclass(frozen=True)
class ThinningOption:
    """Describe a measured thinning that keeps the requested quality: `taken_count` steps from `first_step` on.

    `share` is the mean share of the full run's quality that it kept. With a `spacing` of 1 the steps are evenly spaced;
    with p, step j of m is at (j / m) ** p of the rest, so that the gaps grow."""

    first_step: int
    taken_count: int
    share: float
    spacing: float = 1.0

    @property
    def total(self) -> int:
        """Return the number of steps of an image from noise with this thinning."""
        return self.first_step + self.taken_count


@dataclass(frozen=True)
class ThinningOffer:
    """Hold a request's thinning options: it has `step_count` steps and has finished `next_step`. Without options it
    skips none. `reused_share`: its work if no step is skipped, with steps that reuse deep features at their measured
    cost, ÷ that of whole steps; steps of a thinning are whole."""

    step_count: int
    next_step: int = 0
    options: tuple[ThinningOption, ...] = ()
    reused_share: float = 1.0

    @property
    def remaining_count(self) -> int:
        """Return the steps that remain without thinning."""
        return self.step_count - self.next_step

    @property
    def remaining_cost(self) -> float:
        """Return the cost of the steps that remain without thinning, in whole steps."""
        return self.remaining_count * self.reused_share

    @property
    def least_share(self) -> float:
        """Return the least share (0..1) of the remaining work that must be done."""
        return min(self.least_count / self.remaining_cost, 1.0) if self.options else 1.0

    def remaining_with(self, option: ThinningOption) -> int:
        """Return the steps that remain with a thinning."""
        return option.total - self.next_step

    @property
    def usable(self) -> tuple[ThinningOption, ...]:
        """Return the options that begin at the next step or later and save work."""
        return tuple(
            option
            for option in self.options
            if option.first_step >= self.next_step and self.remaining_with(option) < self.remaining_cost
        )

    @property
    def least_count(self) -> int:
        """Return the fewest steps that may remain."""
        return min((self.remaining_with(option) for option in self.usable), default=self.remaining_count)


WHOLE = ThinningOffer(0)
"""Of a request of which nothing may be left out."""


@dataclass(frozen=True)
class Pressure:
    """Describe the time pressure: seconds per step on the request's device, None if unknown; seconds left for its
    steps, None without a deadline; whether the device's pool is overloaded."""

    step_s: float | None
    remaining_s: float | None = None
    overloaded: bool = False


def choose(mode: ThinningMode, offer: ThinningOffer, pressure: Pressure) -> ThinningOption | None:
    """Return the thinning of a request's remaining steps; None to take all.

    ALWAYS, and LOAD under overload, take the fewest steps. Otherwise the deadline leaves time for
    `remaining_s / step_s` steps: if not all fit, the best thinning that fits is taken; the shortest if none does.
    """
    options = offer.usable
    if mode is ThinningMode.OFF or not options:
        return None
    if takes_fewest(mode, pressure.overloaded):
        return _fewest(options)
    affordable = _affordable(pressure)
    if offer.remaining_cost <= affordable:
        return None
    fitting = [option for option in options if offer.remaining_with(option) <= affordable]
    return max(fitting, key=lambda option: (option.share, option.total)) if fitting else _fewest(options)


def takes_fewest(mode: ThinningMode, overloaded: bool) -> bool:
    """Return whether as many steps as possible are skipped, regardless of the deadline."""
    return mode is ThinningMode.ALWAYS or (mode is ThinningMode.LOAD and overloaded)


def thinnable(mode: ThinningMode, offer: ThinningOffer) -> ThinnableSteps:
    """Return the share of a request's steps that may be skipped under load, and the quality lost with them, for plans:
    no steps if the mode skips none under load, and no loss under ALWAYS, since the steps are skipped without a plan
    too."""
    usable = offer.usable if mode in (ThinningMode.LOAD, ThinningMode.ALWAYS) else ()
    if not usable:
        return ThinnableSteps(1)
    fewest = _fewest(usable)
    spare = 1.0 - offer.remaining_with(fewest) / offer.remaining_cost
    return ThinnableSteps(1, spare, 0.0 if mode is ThinningMode.ALWAYS else max(0.0, 1.0 - fewest.share))


def _fewest(options: Iterable[ThinningOption]) -> ThinningOption:
    return min(options, key=lambda option: (option.total, -option.share))


def _affordable(pressure: Pressure) -> float:
    """Return the number of steps that there is time for."""
    if pressure.remaining_s is None or not pressure.step_s or pressure.step_s <= 0.0:
        return float("inf")
    return max(pressure.remaining_s, 0.0) / pressure.step_s


def thinned_steps(option: ThinningOption, step_count: int) -> tuple[int, ...]:
    """Return the steps to take from the option's first one on, ascending and unique, spread over the rest of a schedule
    of `step_count` by the option's spacing. Raises ValueError if fewer steps remain than the option takes."""
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
    """Return an option of a schedule of `measured_count` steps scaled to `step_count`: the same shares of the schedule,
    rounded up, so that its steps are no further apart than the measured ones. Raises ValueError for fewer steps than
    measured."""
    if step_count < measured_count:
        raise ValueError(f"measured with {measured_count} steps, not with {step_count}")
    first, taken = (-(-count * step_count // measured_count) for count in (option.first_step, option.taken_count))
    return replace(option, first_step=first, taken_count=min(taken, step_count - first))
