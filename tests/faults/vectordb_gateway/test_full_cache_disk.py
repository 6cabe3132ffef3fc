"""Fill the disk of a gateway: lookups continue, no partial entry is found, and entries are accepted again after space
was freed."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import FromLatent
from pentimento.stores.errors import StoreFull
from tests.support.gateways import RunningGateway, attempt, embedding, running_gateway, scope
from tests.support.small_disks import mounted_tmpfs

pytestmark = pytest.mark.faults

SIZE_BYTES = 4 * 2**20
KEPT_BYTES = 2**20
LATENT_BYTES = 100_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of four mebibytes."""
    with mounted_tmpfs(tmp_path, SIZE_BYTES) as mount:
        yield mount


async def store_until_refused(gateway: RunningGateway, size: int) -> list[Embedding]:
    """Store entries until no grant is returned; return the embeddings of the committed ones."""
    texts: list[Embedding] = []
    for _ in range(1000):
        text, by = embedding(), attempt()
        grant = await gateway.client.reserve(scope(), by)
        if grant is None:
            return texts
        await gateway.client.commit(scope(), by, gateway.upload(grant, size), text)
        texts.append(text)
        gateway.maintain()
    raise AssertionError("the disk never filled up")


async def all_found(gateway: RunningGateway, texts: Sequence[Embedding]) -> bool:
    starts = [(await gateway.lookup(text)).start for text in texts]
    objects = gateway.process.stores.objects
    return all(isinstance(start, FromLatent) and objects.get(start.latent) for start in starts)


async def test_a_full_object_store_makes_the_cache_read_only_and_costs_no_entry(
    small_disk: Path, tmp_path: Path
) -> None:
    flags = ("--objects-url", f"file://{small_disk}/objects")
    async with running_gateway(tmp_path, *flags, min_free_bytes=KEPT_BYTES) as gateway:
        texts = await store_until_refused(gateway, LATENT_BYTES)

        assert len(texts) > 3
        assert (await gateway.client.statistics()).read_only
        assert await all_found(gateway, texts)
        assert gateway.problems() == []

        for latent in gateway.process.stores.ledger.held_references():
            gateway.process.stores.objects.delete(latent.key)
        gateway.maintain()
        assert await gateway.client.reserve(scope(), attempt()) is not None


async def test_uploads_that_no_longer_fit_leave_nothing_and_their_grant_is_given_back(
    small_disk: Path, tmp_path: Path
) -> None:
    async with running_gateway(tmp_path, "--objects-url", f"file://{small_disk}/objects") as gateway:
        found = await store_until_full(gateway)

        gateway.maintain()

        assert await all_found(gateway, found)
        assert gateway.problems() == []
        assert (await gateway.client.statistics()).entry_count == len(found)


async def store_until_full(gateway: RunningGateway) -> list[Embedding]:
    """Store entries until an upload fails, as a suite without reserved space does, and release its grant."""
    texts: list[Embedding] = []
    while True:
        text, by = embedding(), attempt()
        grant = await gateway.client.reserve(scope(), by)
        assert grant is not None
        try:
            captured = gateway.upload(grant, LATENT_BYTES)
        except StoreFull:
            await gateway.client.release(grant.grant_id)
            return texts
        await gateway.client.commit(scope(), by, captured, text)
        texts.append(text)


async def test_a_ledger_without_room_refuses_and_loses_nothing_that_it_took(small_disk: Path, tmp_path: Path) -> None:
    async with running_gateway(tmp_path, "--ledger-url", f"sqlite:///{small_disk}/ledger.sqlite") as gateway:
        before = embedding(1)
        await gateway.store(before)
        filler = small_disk / "filler"
        fill(filler)

        refused = await commits_until_refused(gateway)

        assert refused
        assert await all_found(gateway, [before])
        filler.unlink()
        gateway.maintain()
        again = embedding(0, 1)
        await gateway.store(again)
        assert await all_found(gateway, [before, again])
        gateway.maintain()
        assert gateway.problems() == []


def fill(path: Path) -> None:
    """Use all remaining space."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


async def commits_until_refused(gateway: RunningGateway) -> bool:
    """Return whether a reservation or commit within many attempts is refused with a typed error."""
    for _ in range(200):
        by = attempt()
        try:
            grant = await gateway.client.reserve(scope(), by)
            if grant is None:
                return True
            await gateway.client.commit(scope(), by, gateway.upload(grant), embedding())
        except PentimentoError:
            return True
    return False
