"""Predict when images yield their places, and choose progress messages to send."""

import asyncio
from dataclasses import replace

import pytest

from pentimento.devices.choices import LatentFormat
from pentimento.domain.execution import ExecuteEvent, PlaceYielded, Started
from services.unet_worker.attempts.execution import ProgressBridge
from services.unet_worker.attempts.finishing import Finisher
from services.unet_worker.attempts.order import SELDOM_S, PlaceWatch, ProgressPace, StepPace
from tests.unit.unet_worker.orders import ORDER


def first_yield(first_step: int, step_count: int, ended_at: list[float]) -> tuple[int, float]:
    """Return the step that predicts the free place, and the seconds until it is free."""
    watch = PlaceWatch(first_step, step_count, 0.0, StepPace())
    found = ((step, watch.yields_in_s(step, now)) for step, now in enumerate(ended_at, start=first_step + 1))
    return next((step, pytest.approx(after_s)) for step, after_s in found if after_s is not None)


@pytest.mark.parametrize(
    ("first_step", "step_count", "step_s", "found"),
    [(0, 10, 0.1, (9, 0.05)), (0, 50, 0.015, (46, 0.01)), (49, 50, 0.2, (50, 0.0))],
    ids=["slow", "fast", "only"],
)
def test_steps_yield_as_early_as_the_next_takes_to_come(
    first_step: int, step_count: int, step_s: float, found: tuple[int, float]
) -> None:
    ended_at = [step_s * number for number in range(1, step_count - first_step + 1)]

    assert first_yield(first_step, step_count, ended_at) == found


def test_image_of_one_step_yields_by_the_one_before() -> None:
    pace = StepPace()
    PlaceWatch(0, 1, 0.0, pace).yields_in_s(1, 0.2)

    assert PlaceWatch(0, 1, 10.0, pace).yields_in_s(0, 10.0) == pytest.approx(0.15)
    assert PlaceWatch(0, 4, 10.0, pace).yields_in_s(0, 10.0) is None


def test_steps_reported_together_do_not_yield_new_image() -> None:
    late = [0.1, 0.5, 0.5, 0.50001, 0.50002, *(0.1 * step for step in range(6, 11))]

    assert first_yield(0, 10, late)[0] == 9


def test_thinned_steps_count_as_they_are_taken() -> None:
    """The image takes steps 4, 7 and 10 of twelve from step 4 on."""
    watch = PlaceWatch(0, 12, 0.0, StepPace(), (4, 7, 10))

    told = [watch.yields_in_s(step, 0.1 * number) for number, step in enumerate((1, 2, 3, 4, 7, 10), 1)]

    assert told == [None, None, None, None, None, pytest.approx(0.05)]


def bridge_to(told: "asyncio.Queue[ExecuteEvent]", pace: StepPace) -> ProgressBridge:
    finisher = Finisher.__new__(Finisher)  # Nothing is finished here.
    return ProgressBridge("worker", told.put_nowait, finisher, None, ProgressPace(10.0), LatentFormat.EXACT, pace)


@pytest.mark.parametrize("step_s", [0.06, 60.0])
async def test_only_step_yields_before_its_end_or_with_it(step_s: float) -> None:
    told: asyncio.Queue[ExecuteEvent] = asyncio.Queue()
    pace = StepPace()
    pace.step_s = step_s
    bridge = bridge_to(told, pace)

    bridge.started(0, 1)
    if step_s > 1.0:
        bridge.stepped(1, None)

    assert [await told.get(), await told.get()] == [Started("worker", 0, 1), PlaceYielded()]


async def test_a_place_is_yielded_once_though_each_of_the_last_steps_would_do() -> None:
    told: asyncio.Queue[ExecuteEvent] = asyncio.Queue()
    bridge = bridge_to(told, StepPace())
    bridge.started(0, 4)

    for step in range(1, 5):
        bridge.stepped(step, None)
        await asyncio.sleep(0.001)

    events = [told.get_nowait() for _ in range(told.qsize())]
    assert events.count(PlaceYielded()) == 1


STEP_S = 0.0625


@pytest.mark.parametrize(
    ("omit_progress", "previewed", "sent_steps"),
    [
        (False, (), [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 20]),
        # A preview is a message, too.
        (False, (2, 10), [1, 4, 6, 8, 12, 14, 16, 18, 20]),
        (False, (20,), [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]),
        (True, (), [1, 17]),
    ],
)
def test_pace_sends_ten_a_second_and_last_to_waiting_client(
    omit_progress: bool, previewed: tuple[int, ...], sent_steps: list[int]
) -> None:
    """Twenty steps of 0.0625 s: two steps take more than a tenth of a second."""
    pace = replace(ORDER, omit_progress=omit_progress).progress_pace(0.1)

    sent = [step for step in range(1, 21) if pace.sends(step, 20, step * STEP_S, previewed=step in previewed)]

    assert sent == sent_steps


def test_pace_without_waiting_client_is_seldom_with_any_setting() -> None:
    seldom, told = (replace(ORDER, omit_progress=omits).progress_pace(5.0) for omits in (True, False))

    assert SELDOM_S == 1.0
    assert [pace.sends(1, 20, 0.0) for pace in (seldom, told)] == [True, True]
    assert [pace.sends(2, 20, 4.9) for pace in (seldom, told)] == [False, False]


def test_pace_is_the_slower_of_the_worker_s_and_the_order_s() -> None:
    """The second of two steps at most: 0.4 s of the order, 0.5 s of the worker."""
    order = replace(ORDER, progress_interval_ms=400)

    found = {
        least_s: [at_s for at_s in (0.0, 0.3, 0.45, 0.55) if pace.sends(1, 20, at_s)]
        for least_s, pace in ((0.1, order.progress_pace(0.1)), (0.5, order.progress_pace(0.5)))
    }

    assert found == {0.1: [0.0, 0.45], 0.5: [0.0, 0.55]}


def test_pace_without_an_interval_sends_every_step() -> None:
    pace = ProgressPace(0.0)

    assert [step for step in range(1, 4) if pace.sends(step, 3, 0.0)] == [1, 2, 3]
