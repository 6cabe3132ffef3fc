"""Test limits: the oldest entries are evicted, or no new one is accepted."""

from pathlib import Path

import pytest

from pentimento.domain.cache import latent_keys
from pentimento.domain.generation import FromImage, FromLatent, FromNoise
from pentimento.stores.ledger.cache.uses import UseBatch
from pentimento.stores.vectors import Space, VectorQuery
from services.vectordb_gateway import metrics
from services.vectordb_gateway.settings import CapacitySettings
from tests.support.gateways import (
    RunningGateway,
    at_similarity,
    attempt,
    embedding,
    image_thresholds,
    running_gateway,
    scope,
)

FAR_APART = [embedding(*([0] * number), 1) for number in range(4)]


async def test_the_oldest_entries_make_room(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--max-entries", "2") as gateway:
        for text in FAR_APART:
            await gateway.store(text)
        gateway.maintain()

        found = [isinstance((await gateway.lookup(text)).start, FromLatent) for text in FAR_APART]

        assert found == [False, False, True, True]
        assert len(list(gateway.process.stores.objects.keys())) == 10
        assert gateway.problems() == []


async def test_tenant_that_fills_the_cache_evicts_itself(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--max-entries", "3") as gateway:
        await gateway.store(FAR_APART[0], scope("quiet"))
        for text in FAR_APART:
            await gateway.store(text, scope("loud"))
        gateway.maintain()

        assert isinstance((await gateway.lookup(FAR_APART[0], scope("quiet"))).start, FromLatent)
        found = [isinstance((await gateway.lookup(text, scope("loud"))).start, FromLatent) for text in FAR_APART]
        assert found == [False, False, True, True]
        assert gateway.problems() == []


async def test_one_tenant_never_holds_more_than_its_share(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--max-entries", "4", "--tenant-share", "0.5") as gateway:
        for text in FAR_APART:
            await gateway.store(text)
        gateway.maintain()

        assert (await gateway.client.statistics()).entry_count == 2


async def test_tenant_at_its_share_gets_nothing_without_eviction(tmp_path: Path) -> None:
    flags = ("--max-entries", "4", "--tenant-share", "0.25", "--eviction", "none")
    async with running_gateway(tmp_path, *flags) as gateway:
        await gateway.store(FAR_APART[0])

        assert await gateway.client.reserve(scope(), attempt()) is None
        assert await gateway.client.reserve(scope("another"), attempt("another")) is not None


# Whole entries of 500 bytes, or single latents of 100.
@pytest.mark.parametrize(("flags", "size_bytes"), [(("--eviction", "fifo"), 1000), ((), 1200)])
async def test_bytes_are_limited_too(tmp_path: Path, flags: tuple[str, ...], size_bytes: int) -> None:
    async with running_gateway(tmp_path, "--max-size-bytes", "1200", *flags) as gateway:
        for text in FAR_APART:
            await gateway.store(text)
        gateway.maintain()

        assert (await gateway.client.statistics()).size_bytes == size_bytes


async def test_evicted_entry_can_be_read_for_its_grace(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--max-entries", "1", object_grace_s=3600) as gateway:
        await gateway.store(FAR_APART[0])
        answer = await gateway.lookup(FAR_APART[0])
        await gateway.store(FAR_APART[1])
        gateway.maintain()

        assert (await gateway.lookup(FAR_APART[0])).start == FromNoise()
        assert isinstance(answer.start, FromLatent)
        assert gateway.process.stores.objects.get(answer.start.latent)
        assert gateway.problems() == []


async def test_without_eviction_a_full_cache_is_read_only(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--max-entries", "1", "--eviction", "none") as gateway:
        await gateway.store(FAR_APART[0])

        assert await gateway.client.reserve(scope(), attempt()) is None
        assert (await gateway.client.statistics()).read_only
        assert isinstance((await gateway.lookup(FAR_APART[0])).start, FromLatent)


async def test_eviction_keeps_latents_that_serve(tmp_path: Path) -> None:
    """Eleven of twenty latents of 100 bytes may stay: the first entry keeps the latent that served a lookup."""
    flags = ("--max-size-bytes", "1100", "--eviction", "lru")
    async with running_gateway(tmp_path, "--max-size-bytes", "100000", "--eviction", "lru") as gateway:
        for text in FAR_APART:
            await gateway.store(text)
        served = (await gateway.lookup(FAR_APART[0])).start
        assert isinstance(served, FromLatent)
        await gateway.client.report_start(served.latent.key, from_image=False, taken=True)

    async with running_gateway(tmp_path, *flags) as gateway:
        gateway.maintain()

        starts = [(await gateway.lookup(text)).start for text in FAR_APART]
        assert starts[0] == served
        assert [isinstance(start, FromLatent) for start in starts] == [True, False, True, True]
        assert (await gateway.client.statistics()).size_bytes == 1100
        assert gateway.problems() == []


@pytest.mark.parametrize(("limit", "items"), [(("--max-entries", "2"), 10), (("--max-size-bytes", "1000"), 10)])
async def test_full_cache_keeps_new_items_and_evicts_unused(tmp_path: Path, limit: tuple[str, str], items: int) -> None:
    """Two entries fill the cache. Each latent served once: f * K of a new entry is half of their f * K."""
    async with running_gateway(tmp_path, *limit, "--eviction", "lcbfu") as gateway:
        ledger = gateway.process.stores.ledger
        for number in range(2):
            latents = ledger.live_entry(await gateway.store(FAR_APART[number]))
            assert latents is not None
            used = tuple(latent.object.key for latent in latents.latents)
            ledger.note_uses(UseBatch("test", number, used)).result()
        gateway.maintain()

        new = await gateway.store(FAR_APART[2])
        gateway.maintain()

        entry = ledger.live_entry(new)
        assert entry is not None and len(entry.latents) == 5
        assert (await gateway.client.statistics()).object_count == items
        assert isinstance((await gateway.lookup(FAR_APART[2])).start, FromLatent)

        # From the next round on it competes with the others: unused, it serves least.
        await gateway.store(FAR_APART[3])
        gateway.maintain()
        left = ledger.live_entry(new)
        assert left is None or len(left.latents) < 5
        assert isinstance((await gateway.lookup(FAR_APART[3])).start, FromLatent)


async def test_evicted_bytes_count_until_they_leave_the_store(tmp_path: Path) -> None:
    bounds = ("--max-entries", "1", "--max-size-bytes", "600", "--max-store-bytes", "700")
    async with running_gateway(tmp_path, *bounds, object_grace_s=3600) as gateway:
        await gateway.store(FAR_APART[0])
        await gateway.store(FAR_APART[1])
        gateway.maintain()

        assert metrics.STORE_OBJECTS._value.get() == 10
        assert metrics.STORE_SIZE_BYTES._value.get() == 1000
        assert metrics.SIZE_BYTES._value.get() == 500
        assert await gateway.client.reserve(scope(), attempt()) is None
        assert (await gateway.client.statistics()).read_only
        assert isinstance((await gateway.lookup(FAR_APART[1])).start, FromLatent)

    async with running_gateway(tmp_path, *bounds) as gateway:
        for key in list(gateway.process.stores.objects.keys()):
            if key not in {held.key for held in gateway.process.stores.ledger.held_references()}:
                gateway.process.stores.objects.delete(key)
        gateway.maintain()

        assert metrics.STORE_SIZE_BYTES._value.get() == 500
        assert await gateway.client.reserve(scope(), attempt()) is not None


def test_store_limit_below_the_entries_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="--max-store-bytes"):
        CapacitySettings(max_size_bytes=600, max_store_bytes=599)


async def test_tenant_limit_evicts_only_that_tenant_s_entries(tmp_path: Path) -> None:
    """Store four entries of 500 bytes each; a frontdoor sets 1,200 for one tenant, and later no limit."""
    async with running_gateway(tmp_path, "--eviction", "fifo") as gateway:
        for text in FAR_APART:
            await gateway.store(text, scope("small"))
            await gateway.store(text, scope("large"))
        assert await gateway.client.reserve(scope("small"), attempt("small"), tenant_cache_bytes=1200) is not None
        gateway.maintain()

        small = [isinstance((await gateway.lookup(text, scope("small"))).start, FromLatent) for text in FAR_APART]
        large = [isinstance((await gateway.lookup(text, scope("large"))).start, FromLatent) for text in FAR_APART]
        assert (small, large) == ([False, False, True, True], [True] * 4)
        assert gateway.problems() == []

        for text in FAR_APART[:2]:
            await gateway.store(text, scope("small"))
        gateway.maintain()
        assert (await gateway.client.statistics()).entry_count == 8


async def test_gateway_reads_tenant_limits_at_its_start(tmp_path: Path) -> None:
    """A limit set before a restart holds without a new request of the tenant; a removed limit does not."""
    async with running_gateway(tmp_path, "--eviction", "fifo") as gateway:
        for text in FAR_APART:
            for tenant in ("small", "freed"):
                await gateway.store(text, scope(tenant))
        for tenant in ("small", "freed"):
            await gateway.client.reserve(scope(tenant), attempt(tenant), tenant_cache_bytes=1200)
        await gateway.client.reserve(scope("freed"), attempt("freed"))

    async with running_gateway(tmp_path, "--eviction", "fifo") as gateway:
        assert (await gateway.client.statistics()).entry_count == 6

        small = [isinstance((await gateway.lookup(text, scope("small"))).start, FromLatent) for text in FAR_APART]
        freed = [isinstance((await gateway.lookup(text, scope("freed"))).start, FromLatent) for text in FAR_APART]
        assert (small, freed) == ([False, False, True, True], [True] * 4)
        assert gateway.problems() == []


async def test_entry_without_its_latents_hides_no_other(tmp_path: Path) -> None:
    """Six entries of five latents and an image, 100 bytes each. Seven items stay: the images, which save most, and the
    one latent that served, of the entry that is farthest from the prompt."""
    flags = ("--eviction", "lcbfu", *image_thresholds("0.3:0.4"))
    far_picture, nearer = embedding(0, 0, 0, 1), [embedding(1, number / 100) for number in range(5)]
    async with running_gateway(tmp_path, *flags) as gateway:
        for text in nearer:
            await gateway.store(text, image=far_picture)
        whole = await gateway.store(at_similarity(0.96), image=far_picture)
        served = (await gateway.lookup(at_similarity(0.96))).start
        assert isinstance(served, FromLatent) and (served.donor.entry_id, served.resume_step) == (whole, 25)
        await gateway.client.report_start(served.latent.key, from_image=False, taken=True)

    async with running_gateway(tmp_path, *flags, "--max-size-bytes", "700") as gateway:
        gateway.maintain()

        start = (await gateway.lookup(embedding(1))).start
        points = await gateway.process.stores.index.search(by_prompt(gateway), 10.0)

        assert (await gateway.client.statistics()).object_count == 7
        assert isinstance(start, FromLatent) and (start.donor.entry_id, start.resume_step) == (whole, 25)
        assert [point.entry_id for point in points] == [whole]
        assert gateway.problems() == []


async def test_entry_without_its_image_hides_no_other(tmp_path: Path) -> None:
    """Evict the images of the five entries nearest to the prompt, the least recently used of six."""
    flags = ("--eviction", "lru", *image_thresholds("0.3:0.4"))
    far_prompt, nearer = embedding(0, 0, 0, 1), [embedding(1, number / 100) for number in range(5)]
    async with running_gateway(tmp_path, *flags) as gateway:
        stored = [await gateway.store(far_prompt, image=image) for image in nearer]
        whole = await gateway.store(far_prompt, image=at_similarity(0.9))
        ledger = gateway.process.stores.ledger
        entries = ledger.live_entries([*stored, whole])
        latents = [latent.object.key for entry in entries.values() for latent in entry.latents]
        kept = entries[whole].image
        assert kept is not None
        ledger.note_uses(UseBatch("test", 1, (*latents, kept.key))).result()

    async with running_gateway(tmp_path, *flags, "--max-size-bytes", "3100") as gateway:
        gateway.maintain()

        start = (await gateway.lookup(embedding(1))).start

        assert (await gateway.client.statistics()).object_count == 31
        assert isinstance(start, FromImage) and start.donor.entry_id == whole
        assert gateway.problems() == []


def by_prompt(gateway: RunningGateway) -> VectorQuery:
    """Return the index query of a lookup with the default scope."""
    return VectorQuery(Space.TEXT, embedding(1).values, ("tenant",), latent_keys(scope()), 100)
