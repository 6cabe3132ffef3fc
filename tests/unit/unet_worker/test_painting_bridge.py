"""What a picture's attempt hears of its place: once, while the only step of it is taken."""

import asyncio

from pentimento.diffusion.latents import LatentFormat
from pentimento.domain.execution import ExecuteEvent, PlaceYielded, Started
from services.unet_worker.attempts.execution import PaintingBridge
from services.unet_worker.attempts.finishing import Finisher
from services.unet_worker.attempts.order import ProgressPace
from services.unet_worker.attempts.yielding import StepPace


def bridge_to(told: "asyncio.Queue[ExecuteEvent]", pace: StepPace) -> PaintingBridge:
    finisher = Finisher.__new__(Finisher)  # Nothing is finished here.
    return PaintingBridge("worker", told.put_nowait, finisher, None, ProgressPace(10.0), LatentFormat.EXACT, pace)


async def test_the_only_step_yields_before_its_end_where_it_is_known_how_long_it_takes() -> None:
    told: asyncio.Queue[ExecuteEvent] = asyncio.Queue()
    pace = StepPace()
    pace.step_s = 0.06

    bridge_to(told, pace).started(0, 1)

    assert [await told.get(), await told.get()] == [Started("worker", 0, 1), PlaceYielded()]


async def test_the_only_step_yields_with_its_end_where_that_is_sooner_than_expected() -> None:
    told: asyncio.Queue[ExecuteEvent] = asyncio.Queue()
    pace = StepPace()
    pace.step_s = 60.0
    bridge = bridge_to(told, pace)
    bridge.started(0, 1)

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
