"""Watchers get the plan in force at once, then the newest only."""

import asyncio

import pytest

from pentimento.domain.errors import ResourceExhausted, Unavailable
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from services.controller.plan_feed import PlanFeed


def plan(sequence: int, epoch: int = 1) -> Plan:
    return Plan(PlanVersion(epoch, sequence))


@pytest.fixture
def feed() -> PlanFeed:
    return PlanFeed(max_watchers=2)


async def is_waiting(task: "asyncio.Task[Plan]") -> bool:
    """Return whether the task still waits after several turns of the event loop."""
    for _ in range(10):
        await asyncio.sleep(0)
    return not task.done()


async def test_a_watcher_before_the_first_plan_gets_it_when_it_is_there(feed):
    first = asyncio.ensure_future(anext(feed.watch(None)))
    assert await is_waiting(first)

    feed.publish(plan(1))

    assert await first == plan(1)


async def test_a_slow_watcher_gets_the_newest_plan_only(feed):
    watcher = feed.watch(None)
    feed.publish(plan(1))
    await anext(watcher)

    for sequence in (2, 3, 4):
        feed.publish(plan(sequence))

    assert await anext(watcher) == plan(4)


async def test_a_plan_that_the_caller_has_is_not_sent_again(feed):
    feed.publish(plan(3))
    second = asyncio.ensure_future(anext(feed.watch(PlanVersion(1, 3))))
    assert await is_waiting(second)

    feed.publish(plan(4))

    assert await second == plan(4)


async def test_plan_of_earlier_leader_is_kept_until_feed_settles(feed):
    feed.publish(plan(1, epoch=2))
    kept = asyncio.ensure_future(anext(feed.watch(PlanVersion(1, 80))))
    assert await is_waiting(kept)
    feed.publish(plan(2, epoch=2))
    assert await is_waiting(kept)

    feed.settle()

    assert await kept == plan(2, epoch=2)


async def test_a_watcher_without_a_plan_does_not_wait_for_the_fleet(feed):
    feed.publish(plan(1, epoch=2))

    assert await anext(feed.watch(None)) == plan(1, epoch=2)


async def test_closing_ends_the_streams_and_takes_no_new_ones(feed):
    watching = asyncio.ensure_future(anext(feed.watch(None)))
    assert await is_waiting(watching)

    feed.close()

    with pytest.raises(StopAsyncIteration):
        await watching
    with pytest.raises(Unavailable):
        await anext(feed.watch(None))


async def test_watchers_are_limited_and_leaving_frees_place(feed):
    feed.publish(plan(1))
    watchers = [feed.watch(None), feed.watch(None)]
    for watcher in watchers:
        await anext(watcher)
    with pytest.raises(ResourceExhausted, match="at most 2"):
        await anext(feed.watch(None))

    await watchers[0].aclose()

    assert await anext(feed.watch(None)) == plan(1)


async def test_plan_of_earlier_leader_is_in_force_until_fleet_is_known(feed):
    left = plan(9, epoch=1)
    feed.restore(left)
    feed.publish(plan(1, epoch=2))
    newcomer, holder = feed.watch(None), asyncio.ensure_future(anext(feed.watch(PlanVersion(1, 9))))

    assert await anext(newcomer) == left
    assert await is_waiting(holder)
    assert feed.in_force == left

    feed.settle()

    assert await holder == await anext(newcomer) == feed.in_force == plan(1, epoch=2)


async def test_watcher_with_newer_plan_does_not_get_restored_one(feed):
    feed.restore(plan(9, epoch=1))

    assert await is_waiting(asyncio.ensure_future(anext(feed.watch(PlanVersion(1, 10)))))
