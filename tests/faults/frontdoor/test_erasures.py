"""Kill a frontdoor while it erases a tenant: the next one completes the erasure, and its receipt counts each item
once."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import until
from pentimento.domain.tenants import TenantQuota
from pentimento.files.receipts import open_seal
from pentimento.stores.ledger import Journal
from tests.faults.frontdoor.processes import Processes, kill, serving
from tests.support.erasures import counted, object_count, objects_in, put, put_pair, rows
from tests.support.gateways import embedding, running_gateway, scope
from tests.support.journals import a_journal, complete_request

pytestmark = pytest.mark.faults

# More than one deletion of an erasure.
REQUEST_COUNT = 300


def fill(folder: Path, journal: Journal, tenant: str) -> None:
    """Write requests with images, inputs and pairs as a frontdoor leaves them."""
    for number in range(REQUEST_COUNT):
        # Retention deletes none.
        complete_request(journal, f"{tenant}-{number}", time.time() - 1000.0 + number, 10, tenant).result()
        put(folder, f"results/{tenant}-{number}", bytes(10))
    for number in range(3):
        put_pair(folder, tenant, 1e9 + number, f"{tenant} {number}".encode())


async def test_frontdoor_killed_during_erasure_leaves_nothing_and_right_counts(running: Processes) -> None:
    folder, cache = running.folder, running.folder / "cache"
    cache.mkdir()
    async with running_gateway(cache) as gateway:
        with a_journal(folder) as journal:
            for tenant in ("acme", "other"):
                fill(folder, journal, tenant)
                await gateway.store(embedding(), scope(tenant))
                await gateway.store(embedding(), scope(tenant, shared_pool=True))
            journal.tenants.create("acme", TenantQuota()).result()
            had, others = (counted(folder, cache, tenant) for tenant in ("acme", "other"))
            journal.erasures.erase("acme", False).result()
        # A directory in place of an object: its deletion fails, in the middle of the others.
        obstacle = put(folder, "results/acme-250", bytes(10))
        obstacle.rename(folder / "aside")
        obstacle.mkdir()
        flags = ("--gateway-address", gateway.process.server.bound_addresses[0], "--worker-wait-s", "0")
        frontdoor = running.frontdoor("nowhere", flags=flags)
        await serving(running.address("f"))
        await until(lambda: "a tenant could not be erased" in (folder / "frontdoor.log").read_text())
        kill(frontdoor)

        half = counted(folder, cache, "acme")
        assert 0 < half["results"][0] < REQUEST_COUNT and half["requests"][0] > 0
        obstacle.rmdir()
        (folder / "aside").rename(obstacle)
        running.frontdoor("nowhere", flags=flags)
        while not (receipt := receipt_of(folder)):
            await asyncio.to_thread(gateway.maintain)
            await asyncio.sleep(0.1)

        assert (counted(folder, cache, "acme"), counted(folder, cache, "other")) == ({}, others)
        assert object_count(folder) == objects_in(others)
        assert gateway.problems() == []
        found = {one["kind"]: (one["count"], one["bytes"]) for one in open_seal(receipt)["deleted"]}
        assert {kind: sums for kind, sums in found.items() if sums[0]} == had
        assert had["results"] == (REQUEST_COUNT, 10 * REQUEST_COUNT) and json.loads(receipt)["digest"]


def receipt_of(folder: Path) -> str:
    ((receipt,),) = rows(folder / "journal.sqlite", "SELECT coalesce(receipt, '') FROM tenant_departures")
    return str(receipt)
