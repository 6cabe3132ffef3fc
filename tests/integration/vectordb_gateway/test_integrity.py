"""Test the operator's check of the stores after a gateway ran."""

from pathlib import Path

import pytest
from sqlalchemy import text

from pentimento.stores.ledger.cache.tables import SCHEMA
from pentimento.stores.ledger.database import open_engine
from services.vectordb_gateway.integrity import main
from tests.support.gateways import embedding, running_gateway
from tests.support.older_ledgers import set_version


def check(directory: Path, ledger: str = "ledger.sqlite") -> int:
    stores = {"ledger": f"sqlite:///{directory}/{ledger}", "index": f"edge://{directory}/index"}
    stores["objects"] = f"file://{directory}/objects"
    return main([each for name, url in stores.items() for each in (f"--{name}-url", url)])


async def test_stores_that_agree_are_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))

    assert check(tmp_path) == 0
    assert capsys.readouterr().out == "nothing is wrong\n"


async def test_each_thing_that_is_wrong_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path) as gateway:
        entry_id = await gateway.store(embedding(1))
        stores = gateway.process.stores
        stores.index.delete([entry_id])
        orphan = f"cache/{stores.ledger.cache_id}/orphan"
        stores.objects.put(orphan, b"of nobody")

    assert check(tmp_path) == 1
    assert sorted(capsys.readouterr().out.splitlines()) == [
        f"entry {entry_id} is not in the index",
        f"object {orphan} is in the store but not in the ledger",
    ]


async def test_missing_store_is_reported_and_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))

    assert check(tmp_path, ledger="other.sqlite") == 2
    assert f"ledger_url: there is nothing at {tmp_path}/other.sqlite" in capsys.readouterr().err
    assert not (tmp_path / "other.sqlite").exists()


@pytest.mark.parametrize("version", [0, 8])
async def test_older_ledger_is_reported_and_not_migrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))
    if version:
        set_version(f"sqlite:///{tmp_path}/old.sqlite", SCHEMA, version)
    engine = open_engine(f"sqlite:///{tmp_path}/old.sqlite")
    with engine.connect() as connection:
        before = connection.execute(text("SELECT name, sql FROM sqlite_master")).all()

    assert check(tmp_path, ledger="old.sqlite") == 2

    assert f"cache has schema version {version}" in capsys.readouterr().err
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name, sql FROM sqlite_master")).all() == before
    engine.dispose()
