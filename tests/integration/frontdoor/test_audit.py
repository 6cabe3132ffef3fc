"""The audit log names who changed what, and with which outcome; it holds no key and no call that changes nothing."""

import logging
from pathlib import Path

import pytest

from lab.fixtures.paced_worker import PacedWorker
from pentimento.clients.frontdoor import TenantsClient
from pentimento.domain.errors import PentimentoError
from pentimento.domain.identity import Role
from pentimento.domain.tenants import TenantQuota
from pentimento.rpc.audit import is_audited
from tests.integration.frontdoor.administered import administered

METHOD = "/pentimento.api.tenants.v1.TenantService/"


@pytest.mark.parametrize(
    ("method", "roles", "audited"),
    [
        ("CreateTenant", {Role.TENANT_ADMIN}, True),
        ("RemoveModel", {Role.ADMIN}, True),
        ("ListTenants", {Role.TENANT_ADMIN}, False),
        ("GetUsage", {Role.TENANT_ADMIN}, False),
        ("Generate", {Role.USER, Role.ADMIN}, False),
        ("Prefetch", {Role.SERVICE, Role.ADMIN}, False),
    ],
)
def test_only_changes_by_administrators_are_audited(method: str, roles: set[Role], audited: bool) -> None:
    assert is_audited(f"/package.Service/{method}", frozenset(roles)) is audited


async def test_changes_and_refusals_are_logged_with_caller_and_subject(
    folder: Path, worker: PacedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pentimento.audit")
    async with administered(folder) as running:
        await running.admin.create("acme", TenantQuota())
        _, secret = await running.admin.create_key("acme")
        await running.admin.tenants()
        for token in ("token-user", "unknown"):
            stranger = TenantsClient(await running.channel("a", token), 60.0)
            with pytest.raises(PentimentoError):
                await stranger.delete("acme")

    lines = [vars(record) for record in caplog.records if record.name == "pentimento.audit"]
    assert [(one["method"].removeprefix(METHOD), one["tenant"], one["subject"], one["code"]) for one in lines] == [
        ("CreateTenant", "static", "name=acme", "OK"),
        ("CreateKey", "static", "tenant=acme", "OK"),
        ("DeleteTenant", "static", "", "PERMISSION_DENIED"),
        ("DeleteTenant", "", "", "UNAUTHENTICATED"),
    ]
    assert {one["peer"] for one in lines} == {"unix"}
    assert not any(secret in str(one) for one in lines)
