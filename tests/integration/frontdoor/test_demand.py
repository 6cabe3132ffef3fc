"""Test no demand, and a hundred times more demand than capacity: every request ends once, and the report counts
each."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite
from lab.fixtures.held_models import HELD
from lab.fixtures.paced_worker import PacedWorker
from pentimento.dataplane.demand_report import DemandReport
from pentimento.dataplane.events import PlanReceived, ProfilesReceived, SpeedProfile
from pentimento.domain.errors import ResourceExhausted
from pentimento.domain.fleet import Plan, ReplicaReport
from pentimento.domain.generation import PlanVersion
from pentimento.domain.image_request import Completed

ROOM = 2


async def ending(suite: FrontdoorSuite) -> Completed | ResourceExhausted:
    try:
        return await suite.paint()
    except ResourceExhausted as refused:
        return refused


def demand_of(suite: FrontdoorSuite) -> DemandReport:
    return DemandReport(suite.frontdoor.interpreter.dataplane, suite.frontdoor.shadows.counts)


async def test_excess_demand_is_refused_with_a_retry_time(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, queue_limit=ROOM - 1) as suite:
        demand = demand_of(suite)
        demand.added_to(ReplicaReport("f", 1))
        demand.answered()
        worker.hold.clear()
        asking = [asyncio.ensure_future(ending(suite)) for _ in range(100 * ROOM)]
        await worker.wait_until(lambda: worker.running)
        while sum(task.done() for task in asking) < 100 * ROOM - ROOM:  # noqa: ASYNC110 - of many tasks
            await asyncio.sleep(0.01)
        worker.hold.set()
        endings = await asyncio.gather(*asking)
        (told,) = demand.added_to(ReplicaReport("f", 1)).demand
        after = await suite.paint()
        status = await suite.operator.status()

    refused = [ended for ended in endings if isinstance(ended, ResourceExhausted)]
    assert {(one.reason, (one.retry_after_ms or 0) > 0) for one in refused} == {("QUEUE_FULL", True)}
    assert len(refused) == 100 * ROOM - ROOM
    assert (told.arrived_count, told.completed_count, told.dropped_count) == (100 * ROOM, ROOM, len(refused))
    assert (status.accepted_count, status.completed_count, status.failed_count) == (ROOM + 1, ROOM + 1, 0)
    assert after.image and len(worker.executed) == ROOM + 1


async def test_low_admission_refuses_with_its_reason(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        suite.frontdoor.interpreter.submit(PlanReceived(Plan(PlanVersion(1, 1), admission_rate=0.01)))

        endings = await asyncio.gather(*(ending(suite) for _ in range(100)))

    generated = [ended for ended in endings if isinstance(ended, Completed)]
    assert len(generated) == len(worker.executed) == 1
    assert {ended.reason for ended in endings if isinstance(ended, ResourceExhausted)} == {"OVER_CAPACITY"}


async def test_late_requests_are_refused_and_dropped_by_name(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        worker.hold.clear()
        image_takes(suite, 100.0)
        running = suite.client.generate(REQUEST)
        await suite.accepted(running)
        await worker.wait_until(lambda: worker.running)
        # after the running one's 100 s its own
        with pytest.raises(ResourceExhausted) as refused:
            await suite.paint(replace(REQUEST, deadline_ms=120_000))
        late = suite.client.generate(replace(REQUEST, deadline_ms=250_000))
        await suite.accepted(late)
        patient = suite.client.generate(replace(REQUEST, deadline_ms=900_000))
        await suite.accepted(patient)
        image_takes(suite, 2_000.0)
        worker.hold.set()
        with pytest.raises(ResourceExhausted) as dropped:
            _ = [event async for event in late]
        ended = [[event async for event in images][-1] for images in (running, patient)]
        status = await suite.operator.status()

    assert {error.value.reason for error in (refused, dropped)} == {"PREDICTED_LATE"}
    assert min(error.value.retry_after_ms or 0 for error in (refused, dropped)) > 0
    assert [type(event) for event in ended] == [Completed, Completed]
    assert (status.completed_count, len(worker.executed)) == (2, 2)


def image_takes(suite: FrontdoorSuite, seconds: float) -> None:
    """Tell the dataplane how long an image takes."""
    work = HELD.default_width_px * HELD.default_height_px * (REQUEST.num_inference_steps or 0)
    suite.frontdoor.interpreter.submit(ProfilesReceived((SpeedProfile(HELD.model, ((1, seconds / work),)),)))


async def test_no_demand_is_reported_as_zero(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        demand = demand_of(suite)
        await suite.paint()
        demand.added_to(ReplicaReport("f", 1))
        demand.answered()

        quiet = [demand.added_to(ReplicaReport("f", 1)) for _ in range(3)]
        again = await suite.paint()

    assert {(pool.arrived_count, pool.queue_length, pool.scored_count) for told in quiet for pool in told.demand} == {
        (0, 0, 0)
    }
    assert again.image
