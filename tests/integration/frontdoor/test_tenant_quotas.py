"""Test tenants' quotas and usage over real sockets and a real ledger."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from lab.fixtures.frontdoor_suite import REQUEST, settings_of
from lab.fixtures.held_models import HELD
from lab.fixtures.paced_worker import PacedWorker
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.domain.errors import FailedPrecondition, PermissionDenied, ResourceExhausted
from pentimento.domain.fleet import Plan, PoolPlan, WorkerAssignment
from pentimento.domain.generation import PlanVersion
from pentimento.domain.image_request import Completed, ImageRequest, ReplayRequest
from pentimento.domain.jobs import RequestQuery
from pentimento.domain.tenants import DAY_S, HOUR_S, TenantQuota, UsagePeriod
from pentimento.stores.ledger import open_journal
from pentimento.wire.codec import to_bytes
from tests.integration.frontdoor.administered import Administered, administered, generate, refusal

# Pixel steps of REQUEST at its default size, 32 x 32 pixels.
REQUEST_COST = 32 * 32 * 3


async def test_tenant_over_rate_is_refused_and_another_served(running: Administered) -> None:
    greedy = await running.tenant("greedy", requests_per_s=0.01, burst_count=2)
    modest = await running.tenant("modest")
    before = REGISTRY.get_sample_value("pentimento_frontdoor_quota_refusals_total", {"quota": "requests_per_s"}) or 0.0
    for _ in range(2):
        await generate(greedy)

    refused = await refusal(greedy)

    assert isinstance(refused, ResourceExhausted)
    assert (refused.reason, refused.metadata) == ("TENANT_QUOTA", {"quota": "requests_per_s"})
    assert refused.message == "requests_per_s: at most 0.01 requests a second, 2 at once of this tenant"
    assert 50_000 < (refused.retry_after_ms or 0) <= 100_000
    assert (await generate(modest)).image
    after = REGISTRY.get_sample_value("pentimento_frontdoor_quota_refusals_total", {"quota": "requests_per_s"})
    assert after == before + 1


async def test_quota_counts_images_once_per_idempotency_key(running: Administered) -> None:
    client = await running.tenant("acme", cost_per_minute=REQUEST_COST * 2.0)
    refused = await refusal(client, ImageRequest("three", num_inference_steps=3, image_count=3))
    assert (refused.reason, refused.retry_after_ms) == ("TENANT_QUOTA", None)
    assert (await client.list_requests(RequestQuery())).requests == ()
    two = ImageRequest("two", num_inference_steps=3, image_count=2)
    assert len([event async for event in client.generate(two) if isinstance(event, Completed)]) == 2
    assert (await refusal(client)).metadata == {"quota": "cost_per_minute"}

    once = await running.tenant("once", requests_per_s=0.001)
    first = await generate(once, key="once")
    assert (await generate(once, key="once")).request_id == first.request_id
    assert (await refusal(once)).reason == "TENANT_QUOTA"

    excluded = await refusal(await running.tenant("excluded", pools=("another",)))
    assert isinstance(excluded, PermissionDenied)
    assert excluded.reason == "POOL_NOT_ALLOWED"


async def test_quota_changed_is_in_force_at_once(running: Administered) -> None:
    client = await running.tenant("acme", requests_per_s=0.001)
    await generate(client)
    await refusal(client)
    (tenant,) = await running.admin.tenants()

    changed = await running.admin.update("acme", TenantQuota(requests_per_s=0.001, burst_count=2), tenant.revision)

    assert (await generate(client)).image
    assert changed.revision != tenant.revision
    with pytest.raises(FailedPrecondition, match="is not the newest"):
        await running.admin.update("acme", TenantQuota(), tenant.revision)


async def test_quota_and_usage_count_requests_of_before_restart(
    at_half_past_noon: None, folder: Path, worker: PacedWorker
) -> None:
    async with administered(folder) as before:
        await generate(await before.tenant("other"))
        worker.hold.clear()
        await before.admin.create("acme", TenantQuota(concurrent_count=1))
        secret = (await before.admin.create_key("acme"))[1]
        job = await (await before.client(secret)).submit(REQUEST)

    async with administered(folder) as after:
        client = await after.client(secret)
        refused = await refusal(client)
        worker.hold.set()
        events = [event async for event in client.attach(job.request_id)]
        assert isinstance(events[-1], Completed)
        assert (await generate(client)).image
        periods = await after.admin.usage("other", 1_600_000_000_000, 1_600_000_000_001, DAY_S)
        now_ms = int(after.suite.frontdoor.parts.clock.wall() * 1000)
        (found,) = await after.admin.usage("other", now_ms - DAY_S * 1000, now_ms + 1)

    assert (refused.reason, refused.metadata) == ("TENANT_QUOTA", {"quota": "concurrent_count"})
    assert (refused.retry_after_ms or 0) > 0
    assert periods == ()
    assert (found.request_count, found.image_count) == (1, 1)


async def test_request_with_model_runs_in_its_tenants_pool(folder: Path, worker: PacedWorker) -> None:
    """Both pools serve the model, and most workers are in the pool that the tenant may not use."""
    assignments = (WorkerAssignment("w1", f"unix:{folder / 'w1'}", "", 1),)
    pools = (PoolPlan("closed", HELD.model, ("w1", "w2", "w3")), PoolPlan("open", HELD.model, ("w1",)))
    journal = open_journal(settings_of(folder).ledger_url)
    journal.save_plan(to_bytes(Plan(PlanVersion(1, 1), assignments, pools), controller_pb.Plan)).result()
    journal.close()
    named = replace(REQUEST, model=HELD.model)

    async with administered(folder) as running:
        client = await running.tenant("acme", pools=("open",))
        generated = [await generate(client, named) for _ in range(6)]
        replayed = [event async for event in client.replay(ReplayRequest(generated[0].request_id))]
        operator = FrontdoorClient(await running.channel("f", "token-admin"))
        pools_seen = (await operator.status()).pools

    assert isinstance(replayed[-1], Completed)
    assert {pool.pool: pool.completed_count for pool in pools_seen if pool.completed_count} == {"open": 7}


async def test_usage_is_returned_by_hour_and_day(
    at_half_past_noon: None, running: Administered, worker: PacedWorker
) -> None:
    worker.device_s = 0.25
    client = await running.tenant("acme", requests_per_s=0.001, burst_count=2)
    stranger = await running.tenant("other")
    for _ in range(2):
        await generate(client)
    await refusal(client)
    await generate(stranger)
    now_ms = int(running.suite.frontdoor.parts.clock.wall() * 1000)
    span = (now_ms - 2 * DAY_S * 1000, now_ms + 1)

    (hour,), (day,) = [await running.admin.usage("acme", *span, period_s) for period_s in (HOUR_S, DAY_S)]

    used = (2, 2, 0, 2.0 * REQUEST_COST, 0.5, 0, {"TENANT_QUOTA": 1})
    assert hour == UsagePeriod(hour.start_at, *used)
    assert day == UsagePeriod(day.start_at, *used)
    assert hour.start_at % HOUR_S == day.start_at % DAY_S == 0
    assert await running.admin.usage("nobody", *span) == ()
