"""Replicas come, report and go over real sockets, and watchers see the plan follow."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import pytest
from prometheus_client import REGISTRY

from pentimento.clients.controller import ControllerClient, Registration
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from pentimento.domain.fleet import Plan, Replica, ReplicaReport
from pentimento.rpc import RpcChannelSettings, open_channel
from tests.support.values import a_worker


def worker(name: str = "w1", generation: int = 1, model: str = "heavy") -> Replica:
    return a_worker(name, model, generation=generation)


def registration(client: ControllerClient, replica: Replica) -> Registration:
    report = ReplicaReport(replica.instance_id, replica.generation, replica.resident_models)
    return Registration(client, lambda: replica, lambda: report)


async def plan_where(plans: AsyncIterator[Plan], holds: Callable[[Plan], bool]) -> Plan:
    async with asyncio.timeout(120):
        async for plan in plans:
            if holds(plan):
                return plan
    raise AssertionError("the stream ended")


def has(*workers: str) -> Callable[[Plan], bool]:
    return lambda plan: sorted(assignment.worker_id for assignment in plan.assignments) == sorted(workers)


def has_generation(generation: int) -> Callable[[Plan], bool]:
    return lambda plan: [assignment.generation for assignment in plan.assignments] == [generation]


async def test_registered_replicas_enter_the_plan_and_deregistered_ones_leave_it(client):
    kept = registration(client, worker())
    async with aclosing(client.watch_plan("f1")) as plans:
        kept.start()
        entered = await plan_where(plans, has("w1"))
        await kept.close()
        left = await plan_where(plans, has())

    assert entered.pools[0].worker_ids == ("w1",)
    assert left.version > entered.version


# Twice as long as a busy machine stands still.
@pytest.mark.slow
@pytest.mark.parametrize("lease_s", [4.0])
async def test_a_replica_that_reports_outlives_its_first_lease_and_one_that_does_not_falls_out(client):
    kept = registration(client, worker("w1"))
    kept.start()

    async with aclosing(client.watch_plan("f1")) as plans:
        await plan_where(plans, has("w1"))
        await client.register(worker("w2"))
        await plan_where(plans, has("w1", "w2"))
        await plan_where(plans, has("w1"))

    statuses = {status.replica.instance_id: status.live for status in (await client.fleet()).replicas}
    assert statuses == {"w1": True, "w2": False}
    await kept.close()


async def test_a_newer_start_of_a_worker_replaces_the_old_one_in_the_plan(client):
    await client.register(worker(generation=1))
    await client.register(worker(generation=2))

    with pytest.raises(FailedPrecondition, match="replaced by generation 2"):
        await client.register(worker(generation=1))
    async with aclosing(client.watch_plan("f1")) as plans:
        # The plan of the first start may still be in force when we come.
        assert has("w1")(await plan_where(plans, has_generation(2)))


async def test_bad_reports_are_typed_and_the_next_good_one_succeeds(client):
    await client.register(worker())

    with pytest.raises(InvalidArgument) as nonsense:
        await client.report(ReplicaReport("w1", 1, busy_share=float("nan")))
    with pytest.raises(NotFound):
        await client.report(ReplicaReport("w9", 1))

    assert nonsense.value.violations[0].field == "busy_share"
    assert await client.report(ReplicaReport("w1", 1, ("heavy",))) > 0


async def test_watchers_that_go_away_are_dropped(client, address):
    await client.register(worker())
    async with open_channel(address, RpcChannelSettings()) as channel:
        plans = ControllerClient(channel).watch_plan("f1")
        await plan_where(plans, has("w1"))
        assert REGISTRY.get_sample_value("pentimento_controller_watchers_count") == 1

    async with asyncio.timeout(120):
        while REGISTRY.get_sample_value("pentimento_controller_watchers_count"):
            await client.fleet()


async def test_a_watcher_with_the_plan_in_force_gets_newer_ones_only(client):
    await client.register(worker("w1"))
    async with aclosing(client.watch_plan("f1")) as plans:
        held = await plan_where(plans, has("w1"))
    kept = registration(client, worker("w1"))
    kept.start()

    async with aclosing(client.watch_plan("f1", have=held.version)) as plans:
        await client.register(worker("w2"))
        newer = await anext(plans)

    assert newer.version > held.version
    await kept.close()
