"""Test that the start of a pinned image survives eviction, sweeps and store limits."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.fixtures.clocks import SetClock
from lab.fixtures.frontdoor_suite import until
from pentimento.domain.cache import ErasedCache
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.generation import FromLatent, ObjectReference
from services.vectordb_gateway import metrics
from tests.support.gateways import ALL_STEPS, RunningGateway, attempt, embedding, running_gateway, scope

FAR_APART = [embedding(*([0] * number), 1) for number in range(4)]
DAY_S = 86_400.0


def problems_left(gateway: RunningGateway) -> list[str]:
    """Run a round of maintenance, and return the remaining problems."""
    gateway.maintain()
    return gateway.problems()


async def ancestor(gateway: RunningGateway, number: int = 0) -> ObjectReference:
    """Store an entry, and return the object that a lookup would start from."""
    await gateway.store(FAR_APART[number])
    start = (await gateway.lookup(FAR_APART[number])).start
    assert isinstance(start, FromLatent)
    return start.latent


async def test_pinned_latent_outlives_eviction_until_it_is_unpinned(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--max-entries", "1") as gateway:
        reference = await ancestor(gateway)
        await gateway.client.pin_object("tenant", "r1", reference, DAY_S)
        for text in FAR_APART[1:]:
            await gateway.store(text)
            gateway.maintain()

        objects = gateway.process.stores.objects
        assert not isinstance((await gateway.lookup(FAR_APART[0])).start, FromLatent)
        assert objects.get(reference)
        assert len(list(objects.keys())) == 6
        assert metrics.PINNED_OBJECTS._value.get() == 1 and metrics.PINNED_BYTES._value.get() == 100
        assert gateway.problems() == []

    # Restart: the new process finds the pin unchanged.
    async with running_gateway(tmp_path, "--max-entries", "1") as gateway:
        gateway.maintain()
        objects = gateway.process.stores.objects
        assert objects.get(reference)

        await gateway.client.unpin_objects("tenant", "r1")
        await gateway.client.unpin_objects("tenant", "r1")
        gateway.maintain()

        assert reference.key not in set(objects.keys())
        assert gateway.problems() == []
        with pytest.raises(NotFound) as gone:
            await gateway.client.pin_object("tenant", "r1", reference, DAY_S)
        assert gone.value.reason == "ANCESTOR_GONE"


async def test_pinned_objects_do_not_fill_the_cache(tmp_path: Path) -> None:
    bounds = ("--max-entries", "1", "--max-size-bytes", "600", "--max-store-bytes", "650")
    async with running_gateway(tmp_path, *bounds) as gateway:
        references = [await ancestor(gateway)]
        for number in range(1, 4):
            await gateway.client.pin_object("tenant", f"r{number}", references[-1], DAY_S)
            references.append(await ancestor(gateway, number))
            # Objects that one round deletes are absent in the next.
            gateway.maintain()
            gateway.maintain()

        assert metrics.STORE_SIZE_BYTES._value.get() == 800
        assert not (await gateway.client.statistics()).read_only
        assert await gateway.client.reserve(scope(), attempt()) is not None


async def test_missing_object_loses_its_pin(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--max-entries", "1", quarantine_s=0.01) as gateway:
        reference = await ancestor(gateway)
        await gateway.client.pin_object("tenant", "r1", reference, DAY_S)
        await gateway.store(FAR_APART[1])
        gateway.maintain()
        gateway.process.stores.objects.delete(reference.key)
        assert gateway.problems() != []

        await gateway.client.report_bad_object("gone", reference.key, "missing")

        await until(lambda: problems_left(gateway) == [])


async def test_entry_stays_though_its_evicted_pinned_latent_is_missing(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--eviction", "lru", "--max-size-bytes", "400", quarantine_s=0.01) as gateway:
        entry_id, ledger = await gateway.store(FAR_APART[0]), gateway.process.stores.ledger
        entry = ledger.live_entry(entry_id)
        assert entry is not None
        for number, latent in enumerate(entry.latents):
            await gateway.client.pin_object("tenant", f"r{number}", latent.object, DAY_S)
        gateway.maintain()
        left = ledger.live_entry(entry_id)
        assert left is not None
        (evicted,) = {latent.object for latent in entry.latents} - {latent.object for latent in left.latents}
        gateway.process.stores.objects.delete(evicted.key)

        await gateway.client.report_bad_object(entry_id, evicted.key, "missing")

        await until(lambda: problems_left(gateway) == [])
        assert ledger.live_entry(entry_id) == left


async def test_wrong_pins_are_refused_by_name(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        reference = await ancestor(gateway)
        for tenant, request_id, wanted, duration_s, field in (
            ("", "r1", reference, 1.0, "tenant"),
            ("tenant", "", reference, 1.0, "request_id"),
            ("tenant", "r1", ObjectReference("", reference.digest, 100), 1.0, "object.key"),
            ("tenant", "r1", ObjectReference(reference.key, "sha256:no", 100), 1.0, "object.digest"),
            ("tenant", "r1", reference, 1e12, "duration_ms"),
        ):
            with pytest.raises(InvalidArgument) as refused:
                await gateway.client.pin_object(tenant, request_id, wanted, duration_s)
            assert refused.value.violations[0].field == field


@pytest.mark.parametrize("jump_s", [40 * DAY_S, -40 * DAY_S])
async def test_pin_outlives_a_corrected_jump_of_the_clock(tmp_path: Path, jump_s: float) -> None:
    """Pin one object before the clock's jump and another one during it, each for thirty days."""
    clock = SetClock(wall_s=1.7e9)
    async with running_gateway(tmp_path, "--max-entries", "1", clock=clock) as gateway:
        pinned = []
        for number, jumped_s in enumerate((0.0, jump_s)):
            pinned.append(await ancestor(gateway, number))
            clock.wall_s += jumped_s
            await gateway.client.pin_object("tenant", f"r{number}", pinned[-1], 30 * DAY_S)
        await gateway.store(FAR_APART[2])
        gateway.maintain()
        clock.wall_s -= jump_s
        gateway.maintain()

        kept = gateway.process.stores.ledger.kept_by_pins()
        assert {reference.key for reference in kept} == {reference.key for reference in pinned}
        assert all(gateway.process.stores.objects.get(reference) for reference in pinned)
        assert gateway.problems() == []


async def test_pin_ends_if_the_jumped_clock_stays(tmp_path: Path) -> None:
    clock = SetClock(wall_s=1.7e9)
    async with running_gateway(tmp_path, "--max-entries", "1", clock=clock) as gateway:
        pinned = await ancestor(gateway)
        await gateway.client.pin_object("tenant", "r1", pinned, 30 * DAY_S)
        await gateway.store(FAR_APART[1])
        clock.wall_s += 40 * DAY_S
        gateway.maintain()
        assert gateway.process.stores.objects.get(pinned)

        clock.monotonic_s += 3600.0
        clock.wall_s += 3600.0
        gateway.maintain()

        assert pinned.key not in set(gateway.process.stores.objects.keys())


async def test_clock_jump_ends_no_grant_and_no_grace(tmp_path: Path) -> None:
    clock = SetClock(wall_s=1.7e9)
    async with running_gateway(tmp_path, "--max-entries", "1", clock=clock, object_grace_s=3600) as gateway:
        evicted, by = await ancestor(gateway), attempt()
        grant = await gateway.client.reserve(scope(), by)
        assert grant is not None
        await gateway.store(FAR_APART[1])
        gateway.maintain()
        clock.wall_s += 40 * DAY_S
        gateway.maintain()

        assert gateway.process.stores.objects.get(evicted)
        assert await gateway.client.commit(scope(), by, gateway.upload(grant), FAR_APART[2], None, 0)


async def test_forgotten_tenant_leaves_nothing_others_keep_theirs(gateway: RunningGateway) -> None:
    reference = await ancestor(gateway)
    await gateway.client.pin_object("tenant", "r1", reference, DAY_S)
    await gateway.store(FAR_APART[1], scope(shared_pool=True))
    open_grant = await gateway.client.reserve(scope(), attempt())
    kept = await gateway.store(FAR_APART[2], scope("other"))
    assert open_grant is not None
    await gateway.client.pin_object("tenant", "r2", reference, DAY_S)

    begun = await gateway.client.forget_tenant("tenant")
    gateway.maintain()
    ended = await gateway.client.forget_tenant("tenant")

    stores = gateway.process.stores
    assert {name for name, held in stores.ledger.holdings().items() if held.entry_count} == {"other"}
    assert stores.ledger.entry_ids() == [kept]
    assert len(list(stores.objects.keys())) == len(ALL_STEPS)
    assert stores.ledger.totals().open_grant_count == 0
    # Two entries of five latents, 100 bytes each, and a vector of eight floats.
    assert begun == ErasedCache(2, 10, 1000, 0, 0, 2, 64, left_count=12)
    assert ended == replace(begun, left_count=0)
    assert gateway.problems() == []


async def test_forgotten_tenant_takes_evicted_items_and_others_pins_along(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--max-entries", "1", object_grace_s=3600) as gateway:
        await gateway.store(FAR_APART[0], scope(shared_pool=True))
        shared = (await gateway.lookup(FAR_APART[0], scope("other", shared_pool=True))).start
        assert isinstance(shared, FromLatent)
        await gateway.client.pin_object("other", "r1", shared.latent, DAY_S)
        await gateway.store(FAR_APART[1], scope("other"))
        gateway.maintain()
        assert gateway.process.stores.objects.get(shared.latent)

        begun = await gateway.client.forget_tenant("tenant")
        gateway.maintain()

        assert (begun.entry_count, begun.latent_count, begun.latent_bytes) == (0, 5, 500)
        assert (await gateway.client.forget_tenant("tenant")).left_count == 0
        assert len(list(gateway.process.stores.objects.keys())) == len(ALL_STEPS)
        assert gateway.problems() == []
