"""A picture that is thinned while it runs, by a real worker: the message, the engine, the result and its replay."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import FromLatent, ObjectReference, Scheduler
from tests.integration.unet_worker.conftest import Served, at_step
from tests.integration.unet_worker.requests import DONOR, SPEC, attempt, execute, route
from tests.support.calls import result_of

LIMIT_S = 60.0


def asking(worker: Served, steps: tuple[int, ...], request_id: str, found: list[bool]) -> Callable[[], None]:
    """Ask over the wire, from the engine's thread, which takes no step meanwhile."""
    loop = asyncio.get_running_loop()

    def ask() -> None:
        call = worker.client.thin(worker.prefix + request_id, 1, steps, LIMIT_S)
        found.append(asyncio.run_coroutine_threadsafe(call, loop).result(LIMIT_S))

    return ask


@pytest.mark.parametrize("scheduler", [Scheduler.DDIM, Scheduler.EULER])
async def test_a_picture_thinned_on_its_way_is_the_one_thinned_from_its_start_and_its_replay(
    worker: Served, scheduler: Scheduler
) -> None:
    spec, found = replace(SPEC, scheduler=scheduler), list[bool]()
    with at_step(2, asking(worker, (4, 6), "midway", found)):
        midway = await result_of(execute(worker, attempt=attempt(request_id="midway"), spec=spec))
    from_start = replace(route(worker), thinned_steps=(4, 6))
    started, replayed = [
        await result_of(worker.client.execute(attempt(request_id=name), spec, one, worker.held.worker_generation))
        for name, one in (("start", from_start), ("again", replace(from_start, replay_of="midway")))
    ]
    whole = await result_of(execute(worker, attempt=attempt(request_id="whole"), spec=spec))

    assert found == [True]
    assert (midway.thinned_steps, midway.steps_run) == ((4, 6), 6)
    assert midway.image == started.image == replayed.image != whole.image
    assert replayed.thinned_steps == (4, 6)
    assert "steps left out: from step 4 on 2 of 4 were taken" in midway.notes


async def test_asked_behind_the_step_it_takes_them_all(worker: Served) -> None:
    found: list[bool] = []
    with at_step(5, asking(worker, (4, 6), "late", found)):
        late = await result_of(execute(worker, attempt=attempt(request_id="late")))

    assert (found, late.thinned_steps, late.steps_run) == ([True], (), 8)
    assert not any("left out" in note for note in late.notes)


async def test_nobody_is_thinned_whom_the_worker_does_not_know(worker: Served) -> None:
    assert await worker.client.thin("nobody", 1, (4, 6), LIMIT_S) is False


async def test_steps_that_are_none_of_the_schedule_are_refused_and_the_picture_goes_on(worker: Served) -> None:
    refused: list[InvalidArgument] = []

    def ask() -> None:
        try:
            asking_now()
        except InvalidArgument as error:
            refused.append(error)

    asking_now = asking(worker, (4, 8), "wrong", [])
    with at_step(2, ask):
        result = await result_of(execute(worker, attempt=attempt(request_id="wrong")))

    assert [error.violations[0].field for error in refused] == ["thinned_steps"]
    assert result.steps_run == 8


async def test_a_hit_whose_donor_is_gone_takes_all_steps_from_noise(worker: Served) -> None:
    """What was measured of hits allowed it, from its start and on its way."""
    gone = FromLatent(ObjectReference("gone", "sha256:" + "0" * 64, 100), 3, 8, 1.0, DONOR)
    hit, found = replace(route(worker, gone), thinned_steps=(4, 6)), list[bool]()
    generation = worker.held.worker_generation
    routed = await result_of(worker.client.execute(attempt(request_id="routed"), SPEC, hit, generation))
    with at_step(2, asking(worker, (4, 6), "asked", found)):
        asked = await result_of(execute(worker, attempt=attempt(request_id="asked"), start=gone))

    assert found == [True]
    assert [(one.thinned_steps, one.steps_run) for one in (routed, asked)] == [((), 8), ((), 8)]
