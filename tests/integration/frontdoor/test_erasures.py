"""Test the erasure of a tenant's data from every store, with a receipt that counts the erased items."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lab.fixtures.frontdoor_suite import running_suite
from lab.fixtures.paced_worker import PacedWorker
from pentimento.clients.frontdoor import TenantsClient
from pentimento.clients.image import ImageClient
from pentimento.domain.erasure import Erasure, ErasureState
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, NotFound, Unauthenticated
from pentimento.domain.generation import InitImage
from pentimento.domain.image_request import ImageRequest
from pentimento.domain.tenants import DAY_S, Role, TenantQuota
from pentimento.rpc import RpcChannelSettings, open_channel, token_entry
from services.frontdoor.process import Frontdoor
from services.frontdoor.tenants import erasures
from tests.integration.frontdoor.inputs import png, store_away
from tests.support.calls import last_completed
from tests.support.erasures import counted, object_count, objects_in, put_pair, rows
from tests.support.gateways import RunningGateway, embedding, image_thresholds, running_gateway, scope

WITH_IMAGE = ImageRequest("a red circle", num_inference_steps=4, seed=1, init_image=InitImage(png(), 0.5))


@dataclass
class Suite:
    """Hold a frontdoor and a gateway in this process, each with its stores on the disk."""

    folder: Path
    cache: Path
    frontdoor: Frontdoor
    gateway: RunningGateway
    admin: TenantsClient
    clients: Mapping[str, ImageClient]

    async def fill(self, tenant: str) -> None:
        """Give the tenant two requests (one pinned with its input), two pairs, and three cache entries (one in the
        shared pool, one with an image)."""
        await last_completed(self.clients[tenant].generate(replace(WITH_IMAGE, pin_ms=DAY_S * 1000)))
        await last_completed(self.clients[tenant].generate(ImageRequest("a blue ring", num_inference_steps=3)))
        for at_s in (1e9, 2e9):
            put_pair(self.folder, tenant, at_s, f"pair {tenant} {at_s}".encode())
        await self.gateway.store(embedding(), scope(tenant))
        await self.gateway.store(embedding(), scope(tenant, shared_pool=True))
        await self.gateway.store(embedding(), scope(tenant), image=embedding())

    async def rounds(self, count: int) -> None:
        """Continue the erasures, with a round of the gateway's maintenance after each step."""
        for _ in range(count):
            await self.frontdoor.erasures.erase_due()
            await asyncio.to_thread(self.gateway.maintain)

    def counted(self, tenant: str) -> dict[str, tuple[int, int]]:
        return counted(self.folder, self.cache, tenant)


@asynccontextmanager
async def frontdoor_and_gateway(folder: Path, *tenants: str, **changes: Any) -> AsyncIterator[Suite]:
    table, cache = folder / "tokens.toml", folder / "cache"
    table.write_text(token_entry("token-admin", "operator", frozenset({Role.TENANT_ADMIN})))
    cache.mkdir(exist_ok=True)
    async with running_gateway(cache, *image_thresholds("0.3:0.4")) as gateway:
        settings = {"token_file": table, "admin_listen": (f"unix:{folder / 'a'}",), **changes}
        address = gateway.process.server.bound_addresses[0]
        async with (
            running_suite(folder, gateway_address=address, **settings) as suite,
            open_channel(f"unix:{folder / 'a'}", RpcChannelSettings(), "token-admin") as channel,
        ):
            admin, clients = TenantsClient(channel, 60.0), {}
            for name in tenants:
                await admin.create(name, TenantQuota(retention_h=48.0))
                secret = (await admin.create_key(name))[1]
                clients[name] = ImageClient(open_channel(f"unix:{folder / 'f'}", RpcChannelSettings(), secret))
            yield Suite(folder, cache, suite.frontdoor, gateway, admin, clients)


@pytest.fixture(autouse=True)
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests have no calls that began before the deletion. They continue the erasures themselves."""
    monkeypatch.setattr(erasures, "SETTLED_S", 0.0)

    async def wait(_: erasures.Erasures) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(erasures.Erasures, "run_forever", wait)


def key_file(folder: Path) -> tuple[Path, Ed25519PrivateKey]:
    """Return the file of a new key, and the key."""
    key, path = Ed25519PrivateKey.generate(), folder / "receipts.pem"
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(*form))
    return path, key


def receipt_counts(erasure: Erasure) -> dict[str, tuple[int, int]]:
    found = json.loads(erasure.receipt)["receipt"]["deleted"]
    return {one["kind"]: (one["count"], one["bytes"]) for one in found if one["count"]}


async def test_erase_leaves_nothing_of_tenant_and_all_of_others(folder: Path, worker: PacedWorker) -> None:
    path, key = key_file(folder)
    async with frontdoor_and_gateway(folder, "acme", "other", receipt_key_file=path) as suite:
        await suite.fill("acme")
        await suite.fill("other")
        had, others = suite.counted("acme"), suite.counted("other")

        asked = await suite.admin.erase("acme")
        await suite.rounds(3)

        (erasure,) = await suite.admin.erasures("acme")
        assert set(had) == {
            *("requests", "results", "inputs", "compared_pairs"),
            *("cache_entries", "cache_latents", "cache_images", "cache_vectors"),
        }
        assert (asked.state, erasure.state, erasure.waits_for) == (ErasureState.WAITING, ErasureState.DONE, "")
        assert suite.counted("acme") == {}
        assert rows(folder / "journal.sqlite", "SELECT * FROM journal_pins") != []
        assert suite.counted("other") == others
        assert object_count(folder) == objects_in(others)
        left = others["cache_latents"][0] + others["cache_images"][0]
        assert len(list((suite.cache / "objects").rglob("cache.*"))) == left
        assert len(suite.gateway.process.stores.ledger.entry_ids()) == others["cache_entries"][0] == 3
        assert suite.gateway.problems() == []
        with pytest.raises(Unauthenticated):
            await last_completed(suite.clients["acme"].generate(WITH_IMAGE))
        with pytest.raises(NotFound):
            await suite.admin.restore("acme")

    sealed = json.loads(erasure.receipt)
    document = json.dumps(sealed["receipt"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    key.public_key().verify(bytes.fromhex(sealed["signature"]["value"]), document)
    assert receipt_counts(erasure) == had
    times = [sealed["receipt"][name] for name in ("deleted_at", "began_at", "finished_at")]
    assert times == sorted(times)
    assert {one["what"] for one in sealed["receipt"]["kept"]} >= {"audit log", "usage"}


async def test_erase_that_keeps_tenant_leaves_keys_and_later_requests(folder: Path, worker: PacedWorker) -> None:
    async with frontdoor_and_gateway(folder, "acme") as suite:
        await suite.fill("acme")
        had = suite.counted("acme")

        await suite.admin.erase("acme", keep_tenant=True)
        later = await last_completed(suite.clients["acme"].generate(WITH_IMAGE))
        await suite.rounds(3)

        (erasure,) = await suite.admin.erasures()
        (tenant,) = await suite.admin.tenants()
        assert (receipt_counts(erasure), suite.counted("acme")) == (had, {})
        assert suite.counted("*2*acme")["requests"] == (1, 0)
        assert (await suite.clients["acme"].get_request(later.request_id)).completed == later
        assert (tenant.name, tenant.quota.retention_h) == ("acme", 48.0)
        assert "signature" not in json.loads(erasure.receipt)


async def test_erasure_waits_for_running_requests_the_store_and_the_cache(folder: Path, worker: PacedWorker) -> None:
    async with frontdoor_and_gateway(folder, "acme") as suite:
        await suite.fill("acme")
        had = suite.counted("acme")
        worker.hold.clear()
        running = suite.clients["acme"].generate(ImageRequest("late", num_inference_steps=3))
        await anext(running)
        await suite.admin.erase("acme")
        await suite.rounds(2)
        (waits,) = await suite.admin.erasures("acme")
        worker.hold.set()
        async for _ in running:
            pass
        with store_away(folder):
            await suite.rounds(1)
            (without_store,) = await suite.admin.erasures("acme")
        for _ in range(3):
            await suite.frontdoor.erasures.erase_due()
        (before_maintenance,) = await suite.admin.erasures("acme")
        await suite.rounds(3)

        (done,) = await suite.admin.erasures("acme")
        assert (waits.state, waits.waits_for) == (ErasureState.RUNNING, "requests that have not ended")
        assert without_store.state is ErasureState.RUNNING and "object store" in without_store.waits_for
        # Three entries of five latents, one with an image.
        assert before_maintenance.waits_for == "19 entries and objects of the cache"
        assert done.state is ErasureState.DONE
        assert receipt_counts(done)["requests"] == (had["requests"][0] + 1, 0)
        assert suite.counted("acme") == {}


class Killed(BaseException):
    """Represent the end of the process: no handler may catch it."""


CHANGES = {"begin", "plan", "settle", "replace", "finish", "erase_requests", "erase", "forget_tenant"}


class Dying:
    """Wrap a part so that the process ends at the `number`-th point: one point is before, and one after, each
    change."""

    def __init__(self, part: Any, left: list[int]) -> None:
        self._part, self._left = part, left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if name == "erasures":
            return Dying(found, self._left)
        if name not in CHANGES:
            return found

        def change(*values: Any, **options: Any) -> Any:
            self._pass()
            answer = found(*values, **options)
            if not hasattr(answer, "result"):
                return self._after(answer)
            answer.result()
            self._pass()
            return answer

        return change

    async def _after(self, answer: Any) -> Any:
        made = await answer
        self._pass()
        return made

    def _pass(self) -> None:
        self._left[0] -= 1
        if self._left[0] == 0:
            raise Killed


async def test_erasure_killed_before_or_after_any_change_counts_everything_once(
    folder: Path, worker: PacedWorker
) -> None:
    kills = 0
    async with frontdoor_and_gateway(folder, "other") as suite:
        frontdoor = suite.frontdoor
        while True:
            tenant, left = f"acme-{kills}", [kills + 1]
            await suite.admin.create(tenant, TenantQuota())
            secret = (await suite.admin.create_key(tenant))[1]
            channel = open_channel(f"unix:{folder / 'f'}", RpcChannelSettings(), secret)
            suite.clients = {tenant: ImageClient(channel)}
            await suite.fill(tenant)
            had = suite.counted(tenant)
            await suite.admin.erase(tenant)
            dying = [Dying(part, left) for part in (frontdoor.journal, frontdoor.keeper, suite.gateway.client)]
            journal, keeper, gateway = dying
            pairs, clock = frontdoor.shadows.pairs, frontdoor.interpreter.clock
            whole: Any = erasures.TenantStores(journal, keeper, frontdoor.retention, pairs, gateway)  # type: ignore[arg-type]
            for _ in range(5):
                one = erasures.Erasures(whole, frontdoor.identity, clock, 1e9, json.dumps)
                try:
                    await one.erase_due()
                except Killed:
                    kills += 1
                await asyncio.to_thread(suite.gateway.maintain)

            (erasure,) = await suite.admin.erasures(tenant)
            found = {one["kind"]: (one["count"], one["bytes"]) for one in json.loads(erasure.receipt)["deleted"]}
            assert ({kind: sums for kind, sums in found.items() if sums[0]}, suite.counted(tenant)) == (had, {}), left
            assert object_count(folder) == 0
            await channel.close()
            if left[0] > 0:
                break
    assert kills >= 36


async def test_wrong_receipt_key_or_name_is_named(folder: Path, worker: PacedWorker) -> None:
    wrong = folder / "wrong.pem"
    wrong.write_text("no key")
    with pytest.raises(InvalidArgument, match=r"wrong.pem: must be a private key as PEM"):
        async with running_suite(folder, receipt_key_file=wrong):
            pass
    async with frontdoor_and_gateway(folder, "acme") as suite:
        with pytest.raises(NotFound, match="there is no tenant nobody"):
            await suite.admin.erase("nobody")
        with pytest.raises(InvalidArgument, match="name: must be 1 to 100 printable"):
            await suite.admin.erase("")
        assert await suite.admin.erasures("nobody") == ()
        with pytest.raises(FailedPrecondition, match="does not know this call"):
            async with open_channel(f"unix:{folder / 'f'}", RpcChannelSettings(), "token-admin") as public:
                await TenantsClient(public, 60.0).erase("acme")
