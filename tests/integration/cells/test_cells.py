"""Tenants of several frontdoors over one worker: each has its cell, and moves lose nothing."""

import asyncio
from contextlib import suppress

import httpx
import pytest

from lab.fixtures.paced_worker import PacedWorker
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.image import ImageClient
from pentimento.domain.erasure import ErasureState
from pentimento.domain.errors import FailedPrecondition, NotFound, PermissionDenied, Unavailable
from pentimento.domain.image_request import CellAddress, TenantCells
from pentimento.domain.jobs import RequestState
from pentimento.domain.tenants import HashedKey, TenantKey, TenantQuota
from pentimento.policies.cells import cell_tag
from pentimento.rpc import RpcChannelSettings, open_channel
from pentimento.rpc.tokens import hash_token
from tests.integration.cells.cell_suite import (
    REQUEST,
    TENANTS,
    RunningCells,
    accepted_requests,
    generate,
    key_of,
    request_ids,
)

OLD, NEW = "a+b", "a+b+c"


def tags(ids: list[str]) -> list[str]:
    """Return the cells that made these ids."""
    names = {cell_tag(name): name for name in "abc"}
    return [names[one.partition("-")[2][:8]] for one in ids]


async def test_edge_sends_each_tenant_to_its_cell(cells: RunningCells) -> None:
    await cells.start("a", OLD)
    await cells.start("b", OLD)
    async with cells.edge(OLD) as http:
        for tenant in TENANTS:
            assert (await generate(http, tenant)).status_code == 200
        found = {tenant: tags(await request_ids(http, tenant)) for tenant in TENANTS}
    assert found == {tenant: [of[0]] for tenant, of in TENANTS.items()}


async def test_frontdoor_of_another_cell_names_the_right_one(cells: RunningCells) -> None:
    await cells.start("a", OLD)
    await cells.start("b", OLD)
    address = f"unix:{cells.folder / 'b'}"
    async with open_channel(f"unix:{cells.folder / 'a'}", RpcChannelSettings(), "globex") as channel:
        client = ImageClient(channel)
        assert await client.find_cell() == TenantCells("globex", CellAddress("b", address))
        with pytest.raises(FailedPrecondition) as caught:
            await client.submit(REQUEST)
    assert (caught.value.reason, caught.value.metadata) == ("WRONG_CELL", {"cell": "b", "address": address})


async def test_client_over_grpc_continues_at_the_right_cell(cells: RunningCells) -> None:
    await cells.start("a", OLD)
    await cells.start("b", OLD)
    async with cells.client("a", "globex") as client:
        await client.generate(REQUEST)
        accepted = await client.submit(REQUEST)
        assert tags([accepted.request_id]) == ["b"]
        await client.wait(accepted.request_id)
        assert (await client.get_request(accepted.request_id)).state is RequestState.COMPLETED
        with pytest.raises(NotFound, match="there is no such request"):
            await client.get_request(f"r-{cell_tag('b')}{'0' * 24}")
    assert accepted_requests(cells.folder, "a").total() == 0


async def test_move_keeps_requests_under_way_readable_waitable_and_cancellable(
    cells: RunningCells, worker: PacedWorker
) -> None:
    await cells.start("a", OLD)
    await cells.start("b", OLD)
    worker.hold.clear()
    async with cells.edge(OLD) as before:
        body = {"prompt": "a red circle", "num_inference_steps": 3}
        jobs = [await before.post("/v1/jobs", json=body, headers=key_of("tyrell", key)) for key in ("one", "two")]
        first, second = (job.json()["id"] for job in jobs)
    await cells.start("c", NEW, OLD)
    async with cells.edge(NEW, OLD) as http:
        later = await http.post("/v1/jobs", json=body, headers=key_of("tyrell", "three"))
        third = later.json()["id"]
        assert tags([first, second, third]) == ["a", "a", "c"]
        # A retry by its key finds the request in the former cell.
        retried = await http.post("/v1/jobs", json=body, headers=key_of("tyrell", "one"))
        assert (retried.json()["id"], retried.json()["replayed"]) == (first, True)
        assert await request_ids(http, "tyrell") == [third, second, first]
        cancelled = await http.post(f"/v1/jobs/{second}/cancel", headers=key_of("tyrell"))
        assert cancelled.json()["status"] == "cancelled"
        waiting = asyncio.create_task(http.get(f"/v1/jobs/{first}/events", headers=key_of("tyrell")))
        worker.hold.set()
        assert "job.completed" in (await waiting).text
        # Also after the former cell has started again, and knows the new list.
        await cells.restart("a", NEW, OLD)
        assert (await http.get(f"/v1/jobs/{first}/result", headers=key_of("tyrell"))).status_code == 200
        assert (await http.get(f"/v1/jobs/{first}", headers=key_of("globex"))).status_code == 404


async def test_former_cell_rejects_requests_of_moved_tenant(cells: RunningCells) -> None:
    """The former cell and the edge before it do not know the new list yet."""
    await cells.start("a", OLD)
    await cells.start("c", NEW, OLD)
    async with cells.edge(OLD) as before, cells.edge(NEW, OLD) as http:
        assert (await generate(before, "tyrell", "one")).status_code == 200
        assert (await generate(http, "tyrell", "two")).status_code == 200
        for key in ("two", "one", "three"):
            assert (await generate(before, "tyrell", key)).status_code == 200
    assert accepted_requests(cells.folder, "a") == {("tyrell", "one"): 1}
    assert accepted_requests(cells.folder, "c") == {("tyrell", "two"): 1, ("tyrell", "three"): 1}


async def test_reverted_list_moves_tenants_back(cells: RunningCells) -> None:
    """The cell that was added still has the list with it when the former one has started without it."""
    await cells.start("a", OLD)
    await cells.start("c", NEW, OLD)
    async with cells.edge(NEW, OLD) as http:
        assert (await generate(http, "tyrell", "one")).status_code == 200
        await cells.restart("a", OLD, NEW)
        assert (await generate(http, "tyrell", "two")).status_code == 200
        await cells.restart("c", OLD, NEW)
    async with cells.edge(OLD, NEW) as http:
        for key in ("one", "two", "three", ""):
            assert (await generate(http, "tyrell", key)).status_code == 200
    assert accepted_requests(cells.folder, "c") == {("tyrell", "one"): 1, ("tyrell", "two"): 1}
    assert accepted_requests(cells.folder, "a").total() == 2


async def test_cells_with_opposite_lists_accept_each_request_once(cells: RunningCells) -> None:
    await cells.start("a", OLD, NEW)
    await cells.start("c", NEW, OLD)
    keys = [str(number) for number in range(8)]

    async def submit(name: str, key: str) -> None:
        """Submit until the cell accepts the request or leads to the other one, which retries do as well."""
        async with cells.client(name, "tyrell") as client:
            for _ in range(100):
                with suppress(Unavailable):
                    await client.submit(REQUEST, idempotency_key=key)
                    return
            raise AssertionError(f"{name} does not accept {key}")

    await asyncio.gather(*(submit(name, key) for key in keys for name in "ac"))
    accepted = accepted_requests(cells.folder, "a") + accepted_requests(cells.folder, "c")
    assert accepted == {("tyrell", key): 1 for key in keys}


async def test_move_under_load_accepts_each_request_once(cells: RunningCells) -> None:
    await cells.start("a", OLD)
    await cells.start("b", OLD)
    asked: list[tuple[str, str]] = []

    async def load(https: list[httpx.AsyncClient], tenant: str, number: int) -> None:
        """Send a key twice: to either edge, as a client that retries does."""
        key = f"{tenant}-{number}"
        asked.append((tenant, key))
        answers = await asyncio.gather(*(patient(one, tenant, key) for one in https))
        assert {one.status_code for one in answers} == {200}
        assert len({one.headers["x-request-id"] for one in answers}) == 1

    async with cells.edge(OLD) as before:
        await asyncio.gather(*(load([before], tenant, number) for tenant in TENANTS for number in range(3)))
        running = [asyncio.create_task(load([before], tenant, number)) for tenant in TENANTS for number in range(3, 6)]
        await cells.start("c", NEW, OLD)
        async with cells.edge(NEW, OLD) as http:
            both = [before, http]
            running += [asyncio.create_task(load(both, tenant, number)) for tenant in TENANTS for number in range(6, 9)]
            await asyncio.gather(*running)
            await cells.restart("a", NEW, OLD)
            await asyncio.gather(
                *(load([http, before], tenant, number) for tenant in TENANTS for number in range(9, 12))
            )
    accepted = sum(
        (accepted_requests(cells.folder, name) for name in "abc"), start=type(accepted_requests(cells.folder, "a"))()
    )
    assert accepted == dict.fromkeys(asked, 1)
    assert accepted_requests(cells.folder, "c").total() > 0


async def patient(http: httpx.AsyncClient, tenant: str, key: str) -> httpx.Response:
    """Repeat a call while its answer says to come back."""
    for _ in range(1000):
        if (answer := await generate(http, tenant, key)).status_code != 503:
            break
        await asyncio.sleep(0.05)
    return answer


async def test_absent_cell_fails_only_its_own_tenants(cells: RunningCells) -> None:
    await cells.start("a", OLD)
    await cells.start("b", OLD)
    async with cells.edge(OLD) as http:
        assert (await generate(http, "globex")).status_code == 200
        (made,) = await request_ids(http, "globex")
        await cells.kill("b")
        failed = await http.get("/v1/jobs", headers=key_of("globex"))
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "CELL_UNAVAILABLE")
        # A tenant that the edge has not seen yet.
        failed = await http.get("/v1/jobs", headers=key_of("umbrella"))
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "CELL_UNAVAILABLE")
        assert [(await generate(http, tenant)).status_code for tenant in ("acme", "hooli")] == [200, 200]
        assert (await http.get("/ready")).status_code == 200
        await cells.start("b", OLD)
        assert (await patient(http, "globex", "again")).status_code == 200
        assert made in await request_ids(http, "globex")
        await cells.kill("a")
        await cells.kill("b")
        assert (await http.get("/ready")).status_code == 503


async def test_absent_former_cell_delays_moved_tenants_with_a_key(cells: RunningCells) -> None:
    await cells.start("a", OLD)
    async with cells.edge(OLD) as before:
        assert (await generate(before, "tyrell", "one")).status_code == 200
    await cells.start("c", NEW, OLD)
    await cells.kill("a")
    async with cells.client("c", "tyrell") as client, cells.edge(NEW, OLD) as http:
        failed = await http.post("/v1/jobs", json={"prompt": "x"}, headers=key_of("tyrell", "one"))
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "CELL_UNAVAILABLE")
        await cells.start("a", NEW, OLD)
        assert (await patient(http, "tyrell", "one")).status_code == 200
        assert await client.list_models()
    assert accepted_requests(cells.folder, "c").total() == 0


async def test_key_of_a_tenant_is_accepted_by_every_cell(cells: RunningCells) -> None:
    first = await cells.start("a", OLD)
    second = await cells.start("b", OLD)
    ledger = first.journal.tenants
    assert second.journal.tenants is not ledger
    tenant = await asyncio.wrap_future(ledger.create("initech", TenantQuota()))
    await asyncio.wrap_future(ledger.add_key(HashedKey(TenantKey("k", "initech", 0.0), hash_token("secret"))))
    for cell in (first, second):
        await cell.tenants.refresh()
    assert tenant.identity == "initech"
    async with cells.edge(OLD) as http:
        assert (await generate(http, "secret")).status_code == 200
        assert tags(await request_ids(http, "secret")) == ["b"]


async def test_data_of_a_deleted_tenant_is_deleted_in_every_cell(cells: RunningCells) -> None:
    first, second = [await cells.start(name, OLD, tenant_grace_h=0.0) for name in ("a", "b")]
    ledger = first.journal.tenants
    await asyncio.wrap_future(ledger.create("initech", TenantQuota()))
    await asyncio.wrap_future(ledger.add_key(HashedKey(TenantKey("k", "initech", 0.0), hash_token("secret"))))
    await second.tenants.refresh()
    async with cells.client("b", "secret") as client:
        await client.generate(REQUEST)
    assert accepted_requests(cells.folder, "b").total() == 1
    await asyncio.wrap_future(ledger.delete("initech"))

    # The cell that has none of its data comes first.
    for cell in (first, second):
        await cell.erasures.erase_due()

    assert accepted_requests(cells.folder, "b").total() == 0
    counted = [(await cell.erasures.erasures("initech"))[0] for cell in (first, second)]
    assert [one.state for one in counted] == [ErasureState.RUNNING] * 2
    assert [{one.kind: one.count for one in erasure.deleted}.get("requests", 0) for erasure in counted] == [0, 1]
    with pytest.raises(NotFound):
        await asyncio.wrap_future(ledger.restore("initech", 0.0))


async def test_cell_erases_after_the_cell_with_the_tenants_ledger(cells: RunningCells) -> None:
    cells.tenants_of = "a"
    first, second = [await cells.start(name, OLD, tenant_grace_h=0.0) for name in ("a", "b")]
    journal = first.journal
    assert journal.departures is journal.erasures
    await asyncio.wrap_future(journal.tenants.create("initech", TenantQuota()))
    await asyncio.wrap_future(journal.tenants.add_key(HashedKey(TenantKey("k", "initech", 0.0), hash_token("secret"))))
    await second.tenants.refresh()
    async with cells.client("b", "secret") as client:
        await client.generate(REQUEST)
    await asyncio.wrap_future(journal.tenants.delete("initech"))
    await asyncio.wrap_future(journal.erasures.finish("initech", 1.0, "receipt of a"))
    (unknown,) = await second.erasures.erasures("initech")
    assert (unknown.state, unknown.receipt) == (ErasureState.WAITING, "")

    await second.erasures.erase_due()

    assert accepted_requests(cells.folder, "b").total() == 0
    (running,) = await second.erasures.erasures("initech")
    assert (running.state, running.finished_at) == (ErasureState.RUNNING, None)
    assert [(one.kind, one.count) for one in running.deleted if one.kind == "requests"] == [("requests", 1)]


async def test_tenant_kept_by_erasure_finds_its_new_requests(cells: RunningCells) -> None:
    first, second = await cells.start("a", OLD), await cells.start("b", OLD)
    journal = first.journal
    await asyncio.wrap_future(journal.tenants.create("wayne", TenantQuota()))
    await asyncio.wrap_future(journal.tenants.add_key(HashedKey(TenantKey("k", "wayne", 0.0), hash_token("secret"))))
    async with cells.edge(OLD) as http:
        # The second identity's hash would choose the other cell.
        for _ in range(2):
            for cell in (first, second):
                await cell.tenants.refresh()
            assert (await generate(http, "secret")).status_code == 200
            assert tags(await request_ids(http, "secret")) == ["b"]
            await asyncio.wrap_future(journal.departures.erase("wayne", True))


async def test_page_token_of_another_cell_is_rejected(cells: RunningCells) -> None:
    await cells.start("a", OLD)
    await cells.start("b", OLD)
    async with cells.edge(OLD) as http:
        answer = await http.get("/v1/jobs", params={"after": "b/x"}, headers=key_of("acme"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_FIELD")


async def test_find_key_is_for_cells_of_the_suite(cells: RunningCells) -> None:
    await cells.start("a", OLD)
    address, settings = f"unix:{cells.folder / 'a'}", RpcChannelSettings()
    async with open_channel(address, settings, "service") as service, open_channel(address, settings, "acme") as user:
        with pytest.raises(NotFound) as caught:
            await FrontdoorClient(service).find_key("acme", "one", "z")
        assert caught.value.reason == "UNKNOWN_CELL"
        with pytest.raises(PermissionDenied):
            await FrontdoorClient(user).find_key("acme", "one", "b")
        assert not await FrontdoorClient(service).find_key("hooli", "one", "b")


async def test_standby_of_a_cell_takes_no_hand_over(cells: RunningCells) -> None:
    standby = await cells.start("a", OLD)
    standby.identity.epoch = 0
    async with open_channel(f"unix:{cells.folder / 'a'}", RpcChannelSettings(), "service") as channel:
        with pytest.raises(Unavailable) as caught:
            await FrontdoorClient(channel).find_key("hooli", "one", "b")
    assert caught.value.reason == "STANDBY"


async def test_console_shows_each_cell_and_their_sum(cells: RunningCells) -> None:
    await cells.start("a", OLD)
    await cells.start("b", OLD)
    async with cells.edge(OLD) as http:
        for tenant in ("acme", "hooli", "globex"):
            assert (await generate(http, tenant)).status_code == 200
        status = (await http.get("/console/data/status", headers=key_of("acme"))).json()
        assert {name: one["completed_count"] for name, one in status["cells"].items()} == {"a": "2", "b": "1"}
        assert {name: one["cell"] for name, one in status["cells"].items()} == {"a": "a", "b": "b"}
        assert status["frontdoor"]["completed_count"] == "3"
        await cells.kill("b")
        status = (await http.get("/console/data/status", headers=key_of("acme"))).json()
        assert (list(status["cells"]), list(status["unanswered"])) == (["a"], ["cell b", "cell c"])
