"""Test the administration of tenants over real sockets: access, validation, deletion and retention."""

import asyncio
import time
from pathlib import Path

import pytest

from lab.fixtures.paced_worker import PacedWorker
from pentimento.clients.frontdoor import TenantsClient
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied, Unauthenticated
from pentimento.domain.jobs import RequestQuery
from pentimento.domain.tenants import DAY_S, HOUR_S, TenantQuota
from services.frontdoor.tenants import erasures
from tests.integration.frontdoor.administered import Administered, administered, generate

# 403 days, more than one call may cover.
TOO_LONG_MS = 403 * DAY_S * 1000


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


async def test_recreated_tenant_has_no_earlier_requests(running: Administered) -> None:
    before = await running.tenant("acme")
    theirs = await generate(before, key="key")
    await running.admin.delete("acme")

    after = await running.tenant("acme")

    with pytest.raises(NotFound):
        await after.get_request(theirs.request_id)
    assert (await after.list_requests(RequestQuery())).requests == ()
    assert (await generate(after, key="key")).request_id != theirs.request_id


async def test_data_of_deleted_tenant_go_after_grace(
    folder: Path, worker: PacedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "SETTLED_S", 0.0)
    async with administered(folder, tenant_grace_h=0.0) as running:
        acme, other = await running.tenant("acme"), await running.tenant("other")
        theirs, kept = await generate(acme), await generate(other)
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
        await generate(client)
        (summary,) = (await client.list_requests(RequestQuery())).requests
        assert summary.kept_until_ms is not None and summary.finished_at_ms is not None
        kept_ms.append(summary.kept_until_ms - summary.finished_at_ms)

    assert kept_ms == [2 * HOUR_S * 1000, DAY_S * 1000]
    (own, _) = sorted(await running.admin.tenants(), key=lambda tenant: tenant.quota.retention_h is None)
    assert own.quota.retention_h == 2.0
    with pytest.raises(InvalidArgument, match="retention_h: must be between 0 and 87840, got -1"):
        TenantQuota(retention_h=-1.0)
