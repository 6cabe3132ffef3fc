"""Tenants that operators make: keys, quotas and usage, over real sockets and a real ledger."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import REGISTRY

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, settings_of
from lab.fixtures.held_models import HELD
from lab.fixtures.paced_worker import PacedWorker
from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.clients.frontdoor import FrontdoorClient, TenantsClient
from pentimento.clients.image import ImageClient
from pentimento.domain.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PentimentoError,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
)
from pentimento.domain.fleet import Plan, PoolPlan, WorkerAssignment
from pentimento.domain.generation import PlanVersion
from pentimento.domain.identity import Role
from pentimento.domain.image_request import Completed, ImageRequest, ReplayRequest
from pentimento.domain.jobs import RequestQuery
from pentimento.domain.tenants import DAY_S, HOUR_S, TenantKey, TenantQuota, UsagePeriod
from pentimento.rpc import RpcChannelSettings, open_channel, token_entry
from pentimento.stores.ledger import open_journal
from pentimento.wire.codec import to_bytes
from services.frontdoor.tenants import directory, erasures
from services.frontdoor.tenants.administration import TenantAdministration
from tests.support.calls import last_completed

ROLES = {"user": Role.USER, "service": Role.SERVICE, "admin": Role.ADMIN, "tenant-admin": Role.TENANT_ADMIN}
# A year after 1970 and a day: more than a call may ask for.
TOO_LONG_MS = 403 * DAY_S * 1000
# Pixel steps of REQUEST at its default size, 32 x 32 pixels.
REQUEST_COST = 32 * 32 * 3


class Administered:
    """A running frontdoor that tenants are administered at, with a token of each role."""

    def __init__(self, suite: FrontdoorSuite, stack: AsyncExitStack, admin: TenantsClient) -> None:
        self.suite = suite
        self.admin = admin
        self._stack = stack

    async def client(self, token: str) -> ImageClient:
        return ImageClient(await self.channel("f", token))

    async def channel(self, socket: str, token: str | None) -> grpc.aio.Channel:
        address = f"unix:{self.suite.folder / socket}"
        return await self._stack.enter_async_context(open_channel(address, RpcChannelSettings(), token))

    async def tenant(self, name: str, **quota: Any) -> ImageClient:
        """Create a tenant with a key, and return its client."""
        await self.admin.create(name, TenantQuota(**quota))
        return await self.client((await self.admin.create_key(name))[1])


@asynccontextmanager
async def administered(folder: Path, **changes: Any) -> AsyncIterator[Administered]:
    table = folder / "tokens.toml"
    table.write_text("".join(token_entry(f"token-{name}", "static", frozenset({role})) for name, role in ROLES.items()))
    async with (
        running_suite(folder, token_file=table, admin_listen=(f"unix:{folder / 'a'}",), **changes) as suite,
        AsyncExitStack() as stack,
    ):
        channel = await stack.enter_async_context(
            open_channel(f"unix:{folder / 'a'}", RpcChannelSettings(), "token-tenant-admin")
        )
        yield Administered(suite, stack, TenantsClient(channel, 60.0))


@pytest.fixture
async def running(folder: Path, worker: PacedWorker) -> AsyncIterator[Administered]:
    async with administered(folder) as one:
        yield one


async def paint(client: ImageClient, request: ImageRequest = REQUEST, key: str = "") -> Completed:
    return await last_completed(client.generate(request, key))


async def refusal(client: ImageClient, request: ImageRequest = REQUEST) -> PentimentoError:
    with pytest.raises(PentimentoError) as caught:
        await paint(client, request)
    return caught.value


async def test_key_is_refused_after_revocation_or_deletion_of_tenant(running: Administered) -> None:
    await running.admin.create("acme", TenantQuota())
    key, secret = await running.admin.create_key("acme")
    client, of_file = await running.client(secret), await running.client("token-user")
    deleted = await running.tenant("static")
    for one in (client, of_file, deleted):
        assert (await paint(one)).image
    assert secret.startswith(f"pentimento_{key.key_id}_")

    revoked = await running.admin.revoke_key(key.key_id)
    await running.admin.delete("static")

    assert revoked.revoked_at is not None
    assert (await refusal(client)).reason == "UNKNOWN_TOKEN"
    assert await running.admin.keys("acme") == (revoked,)
    assert isinstance(await refusal(deleted), Unauthenticated)
    assert (await paint(of_file)).image


async def test_a_rotated_key_works_beside_the_old_one_until_its_grace_ends(running: Administered) -> None:
    await running.admin.create("acme", TenantQuota())
    first, old_secret = await running.admin.create_key("acme")
    second, new_secret, ended = await running.admin.rotate_key(first.key_id, grace_s=3600)
    old, new = await running.client(old_secret), await running.client(new_secret)
    for client in (old, new):
        assert (await paint(client)).image
    assert ended.key_id == first.key_id
    assert ended.expires_at is not None

    _, newest_secret, _ = await running.admin.rotate_key(second.key_id, grace_s=0)

    assert isinstance(await refusal(new), Unauthenticated)
    assert (await paint(old)).image
    assert (await paint(await running.client(newest_secret))).image
    with pytest.raises(FailedPrecondition, match="has ended"):
        await running.admin.rotate_key(second.key_id, grace_s=0)


async def test_a_key_ends_when_it_expires(running: Administered, monkeypatch: pytest.MonkeyPatch) -> None:
    await running.admin.create("acme", TenantQuota())
    key, secret = await running.admin.create_key("acme", expires_in_s=3600)
    client = await running.client(secret)
    ends_at, is_good = key.expires_at, TenantKey.is_good
    assert ends_at is not None
    assert ends_at - key.created_at == pytest.approx(3600.0, abs=0.01)
    await client.list_models()

    monkeypatch.setattr(TenantKey, "is_good", lambda one, now: is_good(one, now + ends_at - key.created_at))

    with pytest.raises(Unauthenticated):
        await client.list_models()


async def test_a_tenant_over_its_rate_is_refused_while_another_is_served(running: Administered) -> None:
    greedy = await running.tenant("greedy", requests_per_s=0.01, burst_count=2)
    modest = await running.tenant("modest")
    before = REGISTRY.get_sample_value("pentimento_frontdoor_quota_refusals_total", {"quota": "requests_per_s"}) or 0.0
    for _ in range(2):
        await paint(greedy)

    refused = await refusal(greedy)

    assert isinstance(refused, ResourceExhausted)
    assert (refused.reason, refused.metadata) == ("TENANT_QUOTA", {"quota": "requests_per_s"})
    assert refused.message == "requests_per_s: at most 0.01 requests a second, 2 at once of this tenant"
    assert 50_000 < (refused.retry_after_ms or 0) <= 100_000
    assert (await paint(modest)).image
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
    first = await paint(once, key="once")
    assert (await paint(once, key="once")).request_id == first.request_id
    assert (await refusal(once)).reason == "TENANT_QUOTA"

    excluded = await refusal(await running.tenant("excluded", pools=("another",)))
    assert isinstance(excluded, PermissionDenied)
    assert excluded.reason == "POOL_NOT_ALLOWED"


async def test_quota_changed_is_in_force_at_once(running: Administered) -> None:
    client = await running.tenant("acme", requests_per_s=0.001)
    await paint(client)
    await refusal(client)
    (tenant,) = await running.admin.tenants()

    changed = await running.admin.update("acme", TenantQuota(requests_per_s=0.001, burst_count=2), tenant.revision)

    assert (await paint(client)).image
    assert changed.revision != tenant.revision
    with pytest.raises(FailedPrecondition, match="is not the newest"):
        await running.admin.update("acme", TenantQuota(), tenant.revision)


async def test_quota_and_usage_count_requests_of_before_restart(
    at_half_past_noon: None, folder: Path, worker: PacedWorker
) -> None:
    async with administered(folder) as before:
        await paint(await before.tenant("other"))
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
        assert (await paint(client)).image
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
        painted = [await paint(client, named) for _ in range(6)]
        replayed = [event async for event in client.replay(ReplayRequest(painted[0].request_id))]
        operator = FrontdoorClient(await running.channel("f", "token-admin"))
        pools_seen = (await operator.status()).pools

    assert isinstance(replayed[-1], Completed)
    assert {pool.pool: pool.completed_count for pool in pools_seen if pool.completed_count} == {"open": 7}


async def test_what_another_process_changes_in_the_ledger_is_followed(
    quick_looks: None, running: Administered, folder: Path
) -> None:
    """A second frontdoor over the same ledger, as a standby that has just taken over."""
    await running.admin.create("acme", TenantQuota())
    other = open_journal(f"sqlite:///{folder / 'journal.sqlite'}")
    parts = running.suite.frontdoor.parts
    work = running.suite.frontdoor.erasures
    elsewhere = TenantAdministration(other.tenants, QuietDirectory(), parts.usage, work, parts.clock, 0.0)  # type: ignore[arg-type]
    key, secret = await elsewhere.create_key("acme", None)
    client = await running.client(secret)

    async with asyncio.timeout(60):
        while True:
            try:
                await client.list_models()
                break
            except Unauthenticated:
                await asyncio.sleep(0.01)
        await elsewhere.revoke_key(key.key_id)
        with pytest.raises(Unauthenticated):
            while True:
                await client.list_models()
    other.close()


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is looked at more often than it is by default."""
    monkeypatch.setattr(directory, "LOOK_S", 0.02)


class QuietDirectory:
    """Stand for the key directory of a process without calls."""

    async def refresh(self) -> None:
        """Nothing to bring up to date."""


async def test_keys_that_are_known_are_taken_while_the_ledger_is_away(running: Administered) -> None:
    client = await running.tenant("acme")
    parts = running.suite.frontdoor.parts
    models = await client.list_models()

    parts.journal.close()

    with pytest.raises(PentimentoError):
        await parts.tenants.refresh()
    assert await client.list_models() == models
    with pytest.raises(Unauthenticated):
        await (await running.client("pentimento_0_unknown")).list_models()


async def test_what_a_tenant_used_is_told_by_the_hour_and_the_day(
    at_half_past_noon: None, running: Administered, worker: PacedWorker
) -> None:
    worker.device_s = 0.25
    client = await running.tenant("acme", requests_per_s=0.001, burst_count=2)
    stranger = await running.tenant("other")
    for _ in range(2):
        await paint(client)
    await refusal(client)
    await paint(stranger)
    now_ms = int(running.suite.frontdoor.parts.clock.wall() * 1000)
    span = (now_ms - 2 * DAY_S * 1000, now_ms + 1)

    (hour,), (day,) = [await running.admin.usage("acme", *span, period_s) for period_s in (HOUR_S, DAY_S)]

    used = (2, 2, 0, 2.0 * REQUEST_COST, 0.5, 0, {"TENANT_QUOTA": 1})
    assert hour == UsagePeriod(hour.start_at, *used)
    assert day == UsagePeriod(day.start_at, *used)
    assert hour.start_at % HOUR_S == day.start_at % DAY_S == 0
    assert await running.admin.usage("nobody", *span) == ()


async def test_administration_is_for_tenant_admins_at_their_socket(running: Administered) -> None:
    for token in ("token-user", "token-service", "token-admin", "unknown", None):
        stranger = TenantsClient(await running.channel("a", token), 60.0)
        with pytest.raises((PermissionDenied, Unauthenticated)):
            await stranger.create("mine", TenantQuota())
    assert await running.admin.tenants() == ()

    await running.admin.create("acme", TenantQuota())
    _, secret = await running.admin.create_key("acme")
    with pytest.raises(Unauthenticated):
        await TenantsClient(await running.channel("a", secret), 60.0).tenants()
    with pytest.raises(FailedPrecondition, match="the server does not know this call"):
        await TenantsClient(await running.channel("f", "token-tenant-admin"), 60.0).tenants()


async def test_administration_wrong_fields_are_named(running: Administered) -> None:
    admin = running.admin
    await admin.create("acme", TenantQuota())
    for call, error, words in (
        (admin.create("", TenantQuota()), InvalidArgument, "name: must be 1 to 100 printable"),
        (admin.create_key("nobody"), NotFound, "there is no tenant nobody"),
        (admin.create_key("acme", 0), InvalidArgument, "expires_in_s: must be between 1 and"),
        (admin.rotate_key("k", 2**62), InvalidArgument, "grace_s: must be between 0 and"),
        (admin.rotate_key("k", 0), NotFound, "there is no key k"),
        (admin.revoke_key("k\x00"), InvalidArgument, "key_id: must be 1 to 100 printable"),
        (admin.delete("nobody"), NotFound, "there is no tenant nobody"),
        (admin.usage("acme", 5, 5), InvalidArgument, "to_ms: must be after from_ms"),
        (admin.usage("acme", 0, TOO_LONG_MS), InvalidArgument, "to_ms: must be after from_ms"),
        (admin.usage("acme", -5, 5), InvalidArgument, "to_ms: must be after from_ms"),
    ):
        with pytest.raises(error, match=words):
            await call

    assert [tenant.name for tenant in await admin.tenants()] == ["acme"]
    assert await admin.keys("acme") == ()


async def test_recreated_tenant_has_nothing_of_its_predecessor(running: Administered) -> None:
    before = await running.tenant("acme")
    theirs = await paint(before, key="key")
    await running.admin.delete("acme")

    after = await running.tenant("acme")

    with pytest.raises(NotFound):
        await after.get_request(theirs.request_id)
    assert (await after.list_requests(RequestQuery())).requests == ()
    assert (await paint(after, key="key")).request_id != theirs.request_id


async def test_data_of_deleted_tenant_go_after_grace(
    folder: Path, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "SETTLED_S", 0.0)
    async with administered(folder, tenant_grace_h=0.0) as running:
        acme, other = await running.tenant("acme"), await running.tenant("other")
        theirs, kept = await paint(acme), await paint(other)
        await acme.pin(theirs.request_id, DAY_S * 1000)
        await running.admin.delete("acme")
        now_ms = round(time.time() * 1000)
        journal = running.suite.frontdoor.parts.journal

        await running.suite.frontdoor.erasures.erase_due()
        await running.suite.frontdoor.erasures.erase_due()

        assert not await asyncio.wrap_future(journal.has_requests("acme"))
        assert await asyncio.wrap_future(journal.erasures.due(2**40)) == []
        (image,) = (folder / "objects").rglob("results.*")
        assert image.read_bytes() == kept.image
        (used,) = await running.admin.usage("acme", now_ms - DAY_S * 1000, now_ms + 1, DAY_S)
        assert used.image_count == 1
        with pytest.raises(NotFound):
            await running.admin.restore("acme")


async def test_own_retention_of_tenant_ends_its_requests_earlier_than_others(running: Administered) -> None:
    kept_ms = []
    for quota in ({"retention_h": 2.0}, {}):
        client = await running.tenant(f"tenant-{len(quota)}", **quota)
        await paint(client)
        (summary,) = (await client.list_requests(RequestQuery())).requests
        assert summary.kept_until_ms is not None and summary.finished_at_ms is not None
        kept_ms.append(summary.kept_until_ms - summary.finished_at_ms)

    assert kept_ms == [2 * HOUR_S * 1000, DAY_S * 1000]
    (own, _) = sorted(await running.admin.tenants(), key=lambda tenant: tenant.quota.retention_h is None)
    assert own.quota.retention_h == 2.0
    with pytest.raises(InvalidArgument, match="retention_h: must be between 0 and 87840, got -1"):
        TenantQuota(retention_h=-1.0)
