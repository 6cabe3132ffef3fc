"""Test tenants' keys over real sockets and a real ledger."""

import asyncio
from pathlib import Path

import pytest

from pentimento.domain.errors import FailedPrecondition, PentimentoError, Unauthenticated
from pentimento.domain.tenants import TenantKey, TenantQuota
from pentimento.stores.ledger import open_journal
from services.frontdoor.tenants import directory
from services.frontdoor.tenants.administration import TenantAdministration
from tests.integration.frontdoor.administered import Administered, generate, refusal


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
    """The ledger is changed as by a standby that has just taken over."""
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
    """Make the frontdoor read the ledger more often than by default."""
    monkeypatch.setattr(directory, "LOOK_S", 0.02)


class QuietDirectory:
    """Stand for the key directory of a process without calls."""

    async def refresh(self) -> None:
        """Nothing to bring up to date."""


async def test_known_key_is_accepted_while_ledger_is_away(running: Administered) -> None:
    client = await running.tenant("acme")
    parts = running.suite.frontdoor.parts
    models = await client.list_models()

    parts.journal.close()

    with pytest.raises(PentimentoError):
        await parts.tenants.refresh()
    assert await client.list_models() == models
    with pytest.raises(Unauthenticated):
        await (await running.client("pentimento_0_unknown")).list_models()
