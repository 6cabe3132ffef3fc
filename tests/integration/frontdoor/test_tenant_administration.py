"""Test the administration of tenants over real sockets: access, validation, deletion and retention."""

import asyncio
import time
from pathlib import Path

import pytest

from lab.fixtures.paced_worker import PacedWorker
from pentimento.clients.frontdoor import TenantsClient
from pentimento.domain.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PentimentoError,
    PermissionDenied,
    Unauthenticated,
)
from pentimento.domain.jobs import RequestQuery
from pentimento.domain.tenants import DAY_S, HOUR_S, TenantKey, TenantQuota
from pentimento.stores.ledger import open_journal
from services.frontdoor.tenants import directory, erasures
from services.frontdoor.tenants.administration import TenantServicer
from tests.integration.frontdoor.administered import Administered, administered, generate, refusal
from tests.support.tenants import administered_by

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
        journal = running.suite.frontdoor.journal

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


async def test_key_is_refused_after_revocation_or_deletion_of_tenant(running: Administered) -> None:
    await running.admin.create("acme", TenantQuota())
    key, secret = await running.admin.create_key("acme")
    client, of_file = await running.client(secret), await running.client("token-user")
    deleted = await running.tenant("static")
    for one in (client, of_file, deleted):
        assert (await generate(one)).image
    assert secret.startswith(f"pentimento_{key.key_id}_")

    revoked = await running.admin.revoke_key(key.key_id)
    await running.admin.delete("static")

    assert revoked.revoked_at is not None
    assert (await refusal(client)).reason == "UNKNOWN_TOKEN"
    assert await running.admin.keys("acme") == (revoked,)
    assert isinstance(await refusal(deleted), Unauthenticated)
    assert (await generate(of_file)).image


async def test_rotated_and_old_key_work_until_grace_ends(running: Administered) -> None:
    await running.admin.create("acme", TenantQuota())
    first, old_secret = await running.admin.create_key("acme")
    second, new_secret, ended = await running.admin.rotate_key(first.key_id, grace_s=3600)
    old, new = await running.client(old_secret), await running.client(new_secret)
    for client in (old, new):
        assert (await generate(client)).image
    assert ended.key_id == first.key_id
    assert ended.expires_at is not None

    _, newest_secret, _ = await running.admin.rotate_key(second.key_id, grace_s=0)

    assert isinstance(await refusal(new), Unauthenticated)
    assert (await generate(old)).image
    assert (await generate(await running.client(newest_secret))).image
    with pytest.raises(FailedPrecondition, match="has ended"):
        await running.admin.rotate_key(second.key_id, grace_s=0)


async def test_expired_key_is_refused(running: Administered, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_keys_follow_changes_of_another_process(quick_looks: None, running: Administered, folder: Path) -> None:
    """The ledger changes as by a standby that has just taken over."""
    await running.admin.create("acme", TenantQuota())
    other = open_journal(f"sqlite:///{folder / 'journal.sqlite'}")
    of, clock = running.suite.frontdoor, running.suite.frontdoor.interpreter.clock
    servicer = TenantServicer(other.tenants, QuietDirectory(), of.usage, of.erasures, clock, 0.0)  # type: ignore[arg-type]
    elsewhere = administered_by(servicer)
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
    """Make the frontdoor read the ledger more often than by default."""
    monkeypatch.setattr(directory, "LOOK_S", 0.02)


class QuietDirectory:
    """Replace the key directory of a process without calls."""

    async def refresh(self) -> None:
        """There is nothing to refresh."""


async def test_known_key_is_accepted_while_ledger_is_away(running: Administered) -> None:
    client = await running.tenant("acme")
    frontdoor = running.suite.frontdoor
    models = await client.list_models()

    frontdoor.journal.close()

    with pytest.raises(PentimentoError):
        await frontdoor.tenants.refresh()
    assert await client.list_models() == models
    with pytest.raises(Unauthenticated):
        await (await running.client("pentimento_0_unknown")).list_models()
