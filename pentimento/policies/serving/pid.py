"""A PID controller as a pure function of its memory, with the integral held inside what the output can reach."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class PidGains:
    """The gains of a PID controller, MoDM's by default (section 5.3 of the paper). They were tuned for a step every
    180 s, `period_s`, with times in minutes, `unit_s`."""

    proportional: float = 0.6
    integral: float = 0.05
    derivative: float = 0.05
    unit_s: float = 60.0
    period_s: float = 180.0


MODM_GAINS = PidGains()


@dataclass(frozen=True)
class PidMemory:
    """What a PID controller remembers: `value` is what is steered, `error` the last one, `integral` in units of error
    times minutes."""

    value: float
    integral: float = 0.0
    error: float | None = None


def step(gains: PidGains, memory: PidMemory, target: float, elapsed_s: float, low: float, high: float) -> PidMemory:
    """Return the memory after `value` was moved towards `target`, `elapsed_s` after the last step, and kept within
    `low` and `high`.

    The gains say how far a whole period moves it. A shorter step moves it by that share, so that steps every 5 s lead
    to the same course as steps every 180 s; a longer one moves it no further than a period does.

    Anti-windup: while the output is held at a limit, an error that pushes further out is not integrated, and of an
    integral that does, what reaches beyond the limit is forgotten.
    """
    dt = elapsed_s / gains.unit_s
    error = target - memory.value
    integral = memory.integral + error * dt
    slope = 0.0 if memory.error is None or dt <= 0 else (error - memory.error) / dt
    move = gains.proportional * error + gains.integral * integral + gains.derivative * slope
    share = min(elapsed_s / gains.period_s, 1.0)
    wanted = memory.value + move * share
    value = min(max(wanted, low), high)
    beyond = wanted - value
    if beyond * error > 0:
        integral = memory.integral
    # In no time nothing is steered: what lies beyond is of a limit that moved, and not the integral's doing.
    if share > 0 and beyond * integral * gains.integral > 0:
        integral -= math.copysign(min(abs(integral), abs(beyond / (gains.integral * share))), integral)
    return PidMemory(value, integral, error)
