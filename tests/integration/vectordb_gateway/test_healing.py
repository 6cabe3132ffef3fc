"""Test reports of bad objects: bad ones cost their entry, good ones cost nothing."""

from pathlib import Path

import pytest

from lab.fixtures.frontdoor_suite import until
from pentimento.domain.generation import FromLatent, FromNoise
from pentimento.stores.objects.suspects import BAD_READINGS
from services.vectordb_gateway.wiring import GatewayProcess
from tests.support.gateways import RunningGateway, embedding, running_gateway


async def found(gateway: RunningGateway) -> FromLatent:
    start = (await gateway.lookup(embedding(1))).start
    assert isinstance(start, FromLatent)
    return start


SPOILT = pytest.mark.parametrize("spoilt", [None, bytes(100)], ids=["missing", "corrupt"])


def spoil(gateway: RunningGateway, key: str, data: bytes | None) -> None:
    objects = gateway.process.stores.objects
    if data is None:
        objects.delete(key)
    else:
        objects.put(key, data)


@SPOILT
async def test_bad_reading_hides_entry_until_good_one(gateway: RunningGateway, spoilt: bytes | None) -> None:
    entry_id = await gateway.store(embedding(1))
    start = await found(gateway)
    spoil(gateway, start.latent.key, spoilt)

    for _ in range(BAD_READINGS):
        await gateway.client.report_bad_object(entry_id, start.latent.key, "as a worker found it")
    gateway.maintain()

    assert (await gateway.lookup(embedding(1))).start == FromNoise()
    assert gateway.process.stores.ledger.live_entry(entry_id) is not None
    assert not (gateway.directory / "objects" / "quarantine").exists()
    spoil(gateway, start.latent.key, gateway.uploaded[start.latent.key])
    await gateway.client.report_bad_object(entry_id, start.latent.key, "read again")
    assert await found(gateway) == start


async def test_suspect_object_is_read_again_by_maintenance(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, quarantine_s=0.01) as gateway:
        entry_id = await gateway.store(embedding(1))
        start = await found(gateway)
        spoil(gateway, start.latent.key, None)
        await gateway.client.report_bad_object(entry_id, start.latent.key, "missing")
        spoil(gateway, start.latent.key, gateway.uploaded[start.latent.key])

        await until(lambda: not maintained(gateway).gateway.healing.suspects.holders)

        assert await found(gateway) == start


@SPOILT
async def test_third_bad_reading_gives_entry_up(tmp_path: Path, spoilt: bytes | None) -> None:
    async with running_gateway(tmp_path, quarantine_s=0.01) as gateway:
        entry_id = await gateway.store(embedding(1))
        start = await found(gateway)
        spoil(gateway, start.latent.key, spoilt)

        await gateway.client.report_bad_object(entry_id, start.latent.key, "as a worker found it")

        await until(lambda: maintained(gateway).stores.ledger.live_entry(entry_id) is None)
        assert (await gateway.lookup(embedding(1))).start == FromNoise()
        await until(lambda: list(maintained(gateway).stores.objects.keys()) == [])
        assert gateway.problems() == []
        kept = [path.read_bytes() for path in tmp_path.glob("objects/quarantine/*")]
        assert kept == ([spoilt] if spoilt else [])


def maintained(gateway: RunningGateway) -> GatewayProcess:
    """Return the process after a round of its background work."""
    gateway.maintain()
    return gateway.process


async def test_an_object_that_is_sound_stays(gateway: RunningGateway) -> None:
    entry_id = await gateway.store(embedding(1))
    start = await found(gateway)

    await gateway.client.report_bad_object(entry_id, start.latent.key, "it looked odd")

    assert await found(gateway) == start


async def test_reports_of_unknown_objects_are_ignored(gateway: RunningGateway) -> None:
    entry_id = await gateway.store(embedding(1))

    await gateway.client.report_bad_object("00000000-0000-4000-8000-000000000000", "cache/x", "")
    await gateway.client.report_bad_object(entry_id, "cache/x", "")

    await found(gateway)


async def test_a_store_that_is_away_costs_no_entries(gateway: RunningGateway, tmp_path: Path) -> None:
    entry_id = await gateway.store(embedding(1))
    start = await found(gateway)
    (tmp_path / "objects").rename(tmp_path / "elsewhere")

    await gateway.client.report_bad_object(entry_id, start.latent.key, "missing")
    gateway.maintain()

    (tmp_path / "elsewhere").rename(tmp_path / "objects")
    assert await found(gateway) == start
    assert gateway.problems() == []
