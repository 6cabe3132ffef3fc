"""Steer by the PID controller of MoDM's monitor: steps by hand, and whole courses."""

from dataclasses import astuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.policies.plan.mixture import PidMemory, pid_step

PERIOD_S = 180.0


# A whole period: 0.6 of the error 4, 0.05 of the integral 2 + 4 * 3, 0.05 of the slope (4 - 1) / 3. A sixth of it: a
# sixth of 0.6 of 4, 0.05 of 4 / 2 and 0.05 of (4 - 1) / 0.5. Two: 0.6 of 4, 0.05 of 4 * 6, 0.05 of (4 - 1) / 6. At a
# near limit: 12 + 0.6 * 4 + 0.05 * 12 is 0.2 beyond it. An integral of 40 - 3 pushes 1.25 beyond: 25 of it.
STEPS = {
    "a whole period": (
        PidMemory(10.0, 2.0, 1.0),
        14.0,
        180.0,
        16.0,
        PidMemory(10.0 + 0.6 * 4 + 0.05 * 14 + 0.05 * 1, 14.0, 4.0),
    ),
    "a sixth of the period moves a sixth": (
        PidMemory(10.0, 0.0, 1.0),
        14.0,
        30.0,
        16.0,
        PidMemory(10.0 + (2.4 + 0.1 + 0.3) / 6, 2.0, 4.0),
    ),
    "two periods move no further than one": (
        PidMemory(10.0, 0.0, 1.0),
        14.0,
        360.0,
        16.0,
        PidMemory(10.0 + 2.4 + 1.2 + 0.025, 24.0, 4.0),
    ),
    "no time": (PidMemory(10.0, 0.0, 1.0), 14.0, 0.0, 16.0, PidMemory(10.0, 0.0, 4.0)),
    "no time cuts a value beyond its limit and keeps the integral": (
        PidMemory(16.0, 3.0, 1.0),
        12.0,
        0.0,
        12.0,
        PidMemory(12.0, 3.0, -4.0),
    ),
    "an error that pushes past a near limit is not integrated": (
        PidMemory(12.0, 0.0, None),
        16.0,
        180.0,
        14.8,
        PidMemory(14.8, 0.0, 4.0),
    ),
    "an integral that pushes beyond the limit is forgotten": (
        PidMemory(16.0, 40.0, -1.0),
        15.0,
        180.0,
        16.0,
        PidMemory(16.0, 37.0 - 25.0, -1.0),
    ),
    "a small error at the limit": (PidMemory(16.0, 0.0, 0.5), 16.5, 60.0, 16.0, PidMemory(16.0, 0.0, 0.5)),
}


def test_pid_steps_by_hand() -> None:
    for name, (before, target, elapsed_s, high, after) in STEPS.items():
        found = pid_step(PERIOD_S, before, target, elapsed_s, 1.0, high)

        assert astuple(found) == pytest.approx(astuple(after)), name


@settings(deadline=None, max_examples=50)
@given(target=st.floats(1, 16), start=st.floats(1, 16))
def test_pid_reaches_target(target: float, start: float) -> None:
    memory = PidMemory(start, 0.0, None)
    for _ in range(60):
        memory = pid_step(PERIOD_S, memory, target, 180.0, 1.0, 16.0)

    assert memory.value == pytest.approx(target, abs=0.3)


def test_pid_at_limit_winds_nothing_up() -> None:
    memory = PidMemory(16.0, 0.0, 0.0)
    for _ in range(50):
        memory = pid_step(PERIOD_S, memory, 40.0, 180.0, 1.0, 16.0)

    assert memory.value == 16.0
    assert abs(memory.integral) < 1e-9


@settings(deadline=None, max_examples=50)
@given(interval_s=st.floats(0.5, 180.0), start=st.floats(1, 16), target=st.floats(1, 16))
def test_pid_course_is_the_same_at_every_interval(interval_s: float, start: float, target: float) -> None:
    """A gain above 1 a step, as unscaled ones have every few seconds, would throw it from one limit to the other."""
    memory, course = PidMemory(start, 0.0, None), []
    for _ in range(int(3600 / interval_s)):
        memory = pid_step(PERIOD_S, memory, target, interval_s, 1.0, 16.0)
        course.append(memory.value)

    assert max(abs(value - target) for value in course) <= abs(start - target) + 1e-9
    overshoot = max((value - target) * (1 if target > start else -1) for value in course)
    assert overshoot <= 0.25 * abs(start - target) + 1e-9
    assert course[-1] == pytest.approx(target, abs=0.05 * abs(start - target) + 1e-9)
