"""A PID controller as a pure function of its memory, with the integral held inside what the output can reach."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PidGains:
    """The gains of a PID controller, MoDM's by default (section 5.3 of the paper). They were tuned with dt = 3 at a
    period of 180 s: the time base is the minute."""

    proportional: float = 0.6
    integral: float = 0.05
    derivative: float = 0.05
    unit_s: float = 60.0


MODM_GAINS = PidGains()


@dataclass(frozen=True)
class PidMemory:
    """What a PID controller remembers: `value` is what is steered, `error` the last one, `integral` in units of error
    times minutes."""

    value: float
    integral: float = 0.0
    error: float | None = None


def step(gains: PidGains, memory: PidMemory, target: float, elapsed_s: float, low: float, high: float) -> PidMemory:
    """Return the memory after `value` was moved towards `target`, `elapsed_s` > 0 after the last step, and kept within
    `low` and `high`.

    Anti-windup: while the output is held at a limit, an error that pushes further out is not integrated.
    """
    dt = elapsed_s / gains.unit_s
    error = target - memory.value
    integral = memory.integral + error * dt
    slope = 0.0 if memory.error is None or dt <= 0 else (error - memory.error) / dt
    wanted = memory.value + gains.proportional * error + gains.integral * integral + gains.derivative * slope
    value = min(max(wanted, low), high)
    if (wanted - value) * error > 0:
        integral = memory.integral
    return PidMemory(value, integral, error)
