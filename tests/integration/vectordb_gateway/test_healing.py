"""Bad objects cost their entry; good ones cost nothing, whatever is reported of them."""

from pathlib import Path

from pentimento.domain.generation import FromLatent, FromNoise
from tests.gateways import RunningGateway, embedding


async def found(gateway: RunningGateway) -> FromLatent:
    start = (await gateway.lookup(embedding(1))).start
    assert isinstance(start, FromLatent)
    return start


async def test_an_entry_whose_object_is_missing_is_healed_away(gateway: RunningGateway) -> None:
    entry_id = await gateway.store(embedding(1))
    start = await found(gateway)
    gateway.process.stores.objects.delete(start.latent.key)

    await gateway.client.report_bad_object(entry_id, start.latent.key, "missing")

    assert (await gateway.lookup(embedding(1))).start == FromNoise()
    gateway.maintain()
    assert gateway.problems() == []
    assert list(gateway.process.stores.objects.keys()) == []


async def test_an_entry_whose_object_is_corrupt_is_healed_away_and_the_object_kept(
    gateway: RunningGateway, tmp_path: Path
) -> None:
    entry_id = await gateway.store(embedding(1))
    start = await found(gateway)
    gateway.process.stores.objects.put(start.latent.key, bytes(100))

    await gateway.client.report_bad_object(entry_id, start.latent.key, "digest differs")

    assert (await gateway.lookup(embedding(1))).start == FromNoise()
    assert [path.read_bytes() for path in (tmp_path / "objects" / "quarantine").iterdir()] == [bytes(100)]


async def test_an_object_that_is_sound_stays(gateway: RunningGateway) -> None:
    entry_id = await gateway.store(embedding(1))
    start = await found(gateway)

    await gateway.client.report_bad_object(entry_id, start.latent.key, "it looked odd")

    assert await found(gateway) == start


async def test_reports_of_what_is_not_there_are_passed_over(gateway: RunningGateway) -> None:
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
