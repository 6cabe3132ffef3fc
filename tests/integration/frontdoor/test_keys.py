"""Repeat calls with one idempotency key: they are answered before the queue is checked."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import REQUEST, FrontdoorSuite, running_suite, until
from lab.fixtures.paced_worker import PacedWorker
from pentimento.clients.frontdoor import TenantsClient
from pentimento.dataplane.effects import End, PersistEnd
from pentimento.domain.errors import FailedPrecondition, PentimentoError, ResourceExhausted
from pentimento.domain.image_request import Accepted, Completed
from pentimento.domain.tenants import Role, TenantQuota
from pentimento.rpc.access import is_audited
from tests.integration.frontdoor.administered import administered

OTHER = replace(REQUEST, prompt="a blue ring")


async def test_a_call_too_many_is_refused_before_anything_is_done_for_it(
    suite: FrontdoorSuite, worker: PacedWorker
) -> None:
    worker.hold.clear()
    streams = [suite.client.generate(REQUEST, "key") for _ in range(4)]
    ids = {await suite.accepted(stream) for stream in streams}
    arrived = suite.frontdoor.interpreter.dataplane.state.pool("tiny").arrived_count

    with pytest.raises(ResourceExhausted) as caught:
        await suite.paint(OTHER, idempotency_key="key")

    assert (caught.value.reason, caught.value.retry_after_ms) == ("TOO_MANY_LISTENERS", 1000)
    assert "at most 4" in caught.value.message
    assert suite.frontdoor.interpreter.dataplane.state.pool("tiny").arrived_count == arrived
    others = asyncio.gather(*(suite.paint(idempotency_key=key) for key in ("", "another")))
    worker.hold.set()
    assert [type([event async for event in stream][-1]) for stream in streams] == [Completed] * 4
    assert all(completed.image for completed in await others)
    assert (len(ids), len(worker.executed)) == (1, 3)


async def test_finished_key_is_answered_where_queue_is_full(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder) as suite:
        first, *others = [await suite.paint(idempotency_key="key") for _ in range(3)]
    async with running_suite(folder, queue_limit=0) as suite:
        with pytest.raises(ResourceExhausted, match="is full"):
            await suite.paint(idempotency_key="another")
        with pytest.raises(FailedPrecondition) as caught:
            await suite.paint(OTHER, idempotency_key="key")
        accepted, *_, again = await suite.events(idempotency_key="key")

    assert caught.value.reason == "IDEMPOTENCY_KEY_REUSED"
    assert accepted == Accepted(first.request_id, replayed=True)
    assert [again, *others] == [first] * 3
    assert len(worker.executed) == 1


async def test_a_running_key_is_joined_where_the_queue_is_full(folder: Path, worker: PacedWorker) -> None:
    async with running_suite(folder, queue_limit=1) as suite:
        worker.hold.clear()
        first = suite.client.generate(REQUEST, "key")
        request_id = await suite.accepted(first)
        await worker.wait_until(lambda: worker.running)
        waiting = suite.client.generate(OTHER)
        await suite.accepted(waiting)
        with pytest.raises(ResourceExhausted, match="is full"):
            await suite.paint(OTHER)

        second = suite.client.generate(REQUEST, "key")

        assert await anext(second) == Accepted(request_id, replayed=True)
        worker.hold.set()
        assert [event async for event in first][-1] == [event async for event in second][-1]
        assert isinstance([event async for event in waiting][-1], Completed)


async def test_a_call_without_a_key_asks_the_journal_for_none(
    suite: FrontdoorSuite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite.frontdoor.journal, "find_key", None)

    assert (await suite.paint()).image


@pytest.mark.parametrize(("reason", "is_free"), [("PREDICTED_LATE", True), ("STORE_FULL", True), ("BAD_LORA", False)])
async def test_key_is_free_after_end_that_asks_for_retry(
    suite: FrontdoorSuite, worker: PacedWorker, reason: str, is_free: bool
) -> None:
    worker.hold.clear()
    _busy = suite.client.generate(OTHER)
    await suite.accepted(_busy)
    stream, frontdoor = suite.client.generate(REQUEST, "key"), suite.frontdoor
    request_id = await suite.accepted(stream)

    frontdoor.interpreter._performers[PersistEnd](PersistEnd(request_id, End.FAILED, reason, "for a test"))

    await until(lambda: frontdoor.journal.get(request_id, "default").result().finished_at is not None)
    again = await suite.accepted(suite.client.generate(REQUEST, "key"))
    assert (again != request_id) == is_free


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
