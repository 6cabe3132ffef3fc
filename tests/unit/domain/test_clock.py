"""A clock that does not jump with the machine's: its value, and when it accepts a jump."""

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.clock import SteadyClock

DAY_S = 86_400.0


def passed(clock: SetClock, seconds: float, jump_s: float = 0.0) -> None:
    clock.monotonic_s += seconds
    clock.wall_s += seconds + jump_s


@pytest.mark.parametrize("correction_s", [0.0, 299.0, -299.0])
def test_steady_clock_follows_corrections(correction_s: float) -> None:
    machine = SetClock(wall_s=1000.0, monotonic_s=7.0)
    clock = SteadyClock(machine)

    passed(machine, 60.0, correction_s)

    assert (clock.wall(), clock.monotonic()) == (1060.0 + correction_s, 67.0)


@pytest.mark.parametrize("jump_s", [40 * DAY_S, -40 * DAY_S])
def test_steady_clock_ignores_jump_that_is_put_right(jump_s: float) -> None:
    machine = SetClock(wall_s=1e9)
    clock = SteadyClock(machine)

    passed(machine, 10.0, jump_s)
    during = clock.wall()
    passed(machine, 10.0, -jump_s)

    assert (during, clock.wall()) == (1e9 + 10.0, 1e9 + 20.0)


@pytest.mark.parametrize("jump_s", [40 * DAY_S, -40 * DAY_S])
def test_steady_clock_believes_jump_after_an_hour(jump_s: float) -> None:
    machine = SetClock(wall_s=1e9)
    clock = SteadyClock(machine)

    passed(machine, 0.0, jump_s)
    at_first = clock.wall()
    passed(machine, 3599.0)
    before = clock.wall()
    passed(machine, 1.0)

    assert (at_first, before, clock.wall()) == (1e9, 1e9 + 3599.0, 1e9 + 3600.0 + jump_s)


def test_steady_clock_gives_each_jump_its_hour() -> None:
    machine = SetClock(wall_s=1e9)
    clock = SteadyClock(machine)

    passed(machine, 0.0, DAY_S)
    clock.wall()
    passed(machine, 3000.0, DAY_S)
    clock.wall()
    passed(machine, 3000.0)

    assert clock.wall() == 1e9 + 6000.0


def test_wall_as_told_equals_machine_time() -> None:
    machine = SetClock(wall_s=1e9)
    clock = SteadyClock(machine)

    passed(machine, 1.0, DAY_S)

    assert clock.wall_as_told() == 1e9 + 1.0 + DAY_S


def test_steady_clock_continues_after_sleep() -> None:
    """Its monotonic clock stood still meanwhile, and the time since it began did not."""
    machine, began = SetClock(wall_s=1e9, monotonic_s=7.0), [50.0]
    clock = SteadyClock(machine, lambda: began[0])

    machine.wall_s += 2 * 3600.0
    began[0] += 2 * 3600.0

    assert (clock.wall(), clock.monotonic()) == (1e9 + 7200.0, 7.0)
