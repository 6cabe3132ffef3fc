"""Test an emulated attempt that is thinned while it runs."""

import pytest

from lab.emulation.emulated_worker.device_news import JobBridge
from pentimento.domain.execution import ExecuteEvent, StepProgress
from services.unet_worker.attempts.order import ProgressPace
from tests.unit.unet_worker.orders import ORDER


def running(first_step: int = 0) -> tuple[JobBridge, list[ExecuteEvent]]:
    """Begin an attempt of eight steps, and return it with the list of its events."""
    told: list[ExecuteEvent] = []
    bridge = JobBridge("w", ORDER, first_step, told.append, None, ProgressPace(0.0))
    bridge.began()
    return bridge, told


def play(bridge: JobBridge, left: int) -> None:
    """Take steps to the end."""
    while left:
        left -= 1
        bridge.stepped(left)
        left = bridge.left_after(left)


@pytest.mark.parametrize("asked_after", [0, 2, 4])
async def test_thin_before_its_first_step_is_followed(asked_after: int) -> None:
    bridge, told = running()
    for done in range(1, asked_after + 1):
        bridge.stepped(8 - done)
        assert bridge.left_after(8 - done) == 8 - done
    bridge.thin((4, 6))
    left = bridge.left_after(8 - asked_after)
    play(bridge, left)

    assert left == 6 - asked_after
    assert (bridge.thinned_steps, bridge.steps_run) == ((4, 6), 6)
    assert [event.step for event in told if isinstance(event, StepProgress)] == [1, 2, 3, 4, 6, 8]


async def test_late_or_second_thin_changes_nothing() -> None:
    late, _ = running()
    late.thin((2, 6))
    assert late.left_after(5) == 5
    assert (late.thinned_steps, late.steps_run) == ((), 8)
    twice, _ = running(first_step=2)
    twice.thin((3, 5))
    assert twice.left_after(6) == 3
    twice.thin((6,))
    assert twice.left_after(2) == 2
    assert (twice.thinned_steps, twice.steps_run) == ((3, 5), 3)
