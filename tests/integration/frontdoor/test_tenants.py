"""Test what two tenants of one frontdoor can see, and what metrics and logs omit."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, generate_latest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, settings_of
from lab.fixtures.held_models import HELD
from lab.fixtures.paced_worker import PacedWorker
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.image import ImageClient
from pentimento.domain.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
)
from pentimento.domain.fleet import Plan, PoolPlan, WorkerAssignment
from pentimento.domain.generation import PlanVersion
from pentimento.domain.image_request import Completed, ImageRequest, ReplayRequest
from pentimento.domain.jobs import RequestQuery
from pentimento.domain.tenants import DAY_S, HOUR_S, Role, TenantQuota, UsagePeriod
from pentimento.rpc import RpcChannelSettings, open_channel, token_entry
from pentimento.stores.ledger import open_journal
from pentimento.wire.codec import to_bytes
from tests.integration.frontdoor.administered import Administered, administered, generate, refusal
from tests.support.calls import last_completed

CANARY = "a canary in a coal mine"


class Tenants:
    """Hold a client of each tenant."""

    def __init__(self, one: ImageClient, other: ImageClient, nobody: ImageClient, operator: FrontdoorClient) -> None:
        self.one = one
        self.other = other
        self.nobody = nobody
        self.operator = operator


@pytest.fixture
async def tenants(folder: Path, worker: PacedWorker) -> AsyncIterator[Tenants]:
    table = folder / "tokens.toml"
    entries = [token_entry(f"token-{name}", name, frozenset({Role.USER})) for name in ("one", "other")]
    table.write_text("".join(entries))
    async with running_suite(folder, token_file=table), AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(open_channel(f"unix:{folder / 'f'}", RpcChannelSettings(), token))
            for token in ("token-one", "token-other", None)
        ]
        yield Tenants(*(ImageClient(channel) for channel in channels), FrontdoorClient(channels[0]))


async def completed_image(client: ImageClient, request: ImageRequest = REQUEST, key: str = "") -> Completed:
    return await last_completed(client.generate(request, key))


# RPCs that name a request, except GetResultUrl, which needs a signing key.
CALLS: dict[str, Callable[[ImageClient, str], Awaitable[object]]] = {
    "GetRequest": lambda client, request_id: client.get_request(request_id),
    "Cancel": lambda client, request_id: client.cancel(request_id),
    "Attach": lambda client, request_id: anext(client.attach(request_id)),
    "Replay": lambda client, request_id: anext(client.replay(ReplayRequest(request_id))),
    "Pin": lambda client, request_id: client.pin(request_id, 60_000),
    "Unpin": lambda client, request_id: client.unpin(request_id),
}


async def test_foreign_tenant_finds_and_changes_nothing(tenants: Tenants, worker: PacedWorker) -> None:
    service = pb.DESCRIPTOR.services_by_name["ImageService"]
    named = {method.name for method in service.methods if "request_id" in method.input_type.fields_by_name}
    assert CALLS.keys() == named - {"GetResultUrl"}
    finished = await completed_image(tenants.one, key="key")
    worker.hold.clear()
    stream = tenants.one.generate(REQUEST)
    running = await anext(stream)
    await worker.wait_until(lambda: worker.running)
    job = await tenants.one.submit(REQUEST, "job")
    foreign = [(tenants.other, one.request_id) for one in (finished, running, job)]

    for client, request_id in (*foreign, (tenants.one, "r-" + "0" * 32), (tenants.one, "\n")):
        for name, call in CALLS.items():
            with pytest.raises(NotFound) as caught:
                await call(client, request_id)
            assert caught.value.reason == "UNKNOWN_REQUEST", name

    assert (await tenants.other.list_requests(RequestQuery())).requests == ()
    worker.hold.set()
    assert isinstance([event async for event in stream][-1], Completed)
    assert (await tenants.one.get_request(finished.request_id)).completed == finished
    assert len((await tenants.one.list_requests(RequestQuery())).requests) == 3
    assert (await completed_image(tenants.other, key="key")).request_id != finished.request_id
    assert (await tenants.other.submit(REQUEST, "job")).request_id != job.request_id


async def test_call_without_token_or_rights_is_refused(tenants: Tenants) -> None:
    with pytest.raises(Unauthenticated):
        await completed_image(tenants.nobody)
    with pytest.raises(PermissionDenied):
        await tenants.operator.status()


async def test_prompts_appear_neither_in_logs_nor_in_metrics(
    suite: FrontdoorSuite, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    await suite.paint(ImageRequest(prompt=CANARY, negative_prompt=CANARY, num_inference_steps=1))
    with pytest.raises(InvalidArgument):
        await suite.paint(ImageRequest(prompt=CANARY, width_px=-1))

    written = caplog.text + repr([record.__dict__ for record in caplog.records]) + generate_latest(REGISTRY).decode()
    assert "canary" not in written


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


async def test_changed_quota_applies_immediately(running: Administered) -> None:
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
        now_ms = int(after.suite.frontdoor.interpreter.clock.wall() * 1000)
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
    now_ms = int(running.suite.frontdoor.interpreter.clock.wall() * 1000)
    span = (now_ms - 2 * DAY_S * 1000, now_ms + 1)

    (hour,), (day,) = [await running.admin.usage("acme", *span, period_s) for period_s in (HOUR_S, DAY_S)]

    used = (2, 2, 0, 2.0 * REQUEST_COST, 0.5, 0, {"TENANT_QUOTA": 1})
    assert hour == UsagePeriod(hour.start_at, *used)
    assert day == UsagePeriod(day.start_at, *used)
    assert hour.start_at % HOUR_S == day.start_at % DAY_S == 0
    assert await running.admin.usage("nobody", *span) == ()
