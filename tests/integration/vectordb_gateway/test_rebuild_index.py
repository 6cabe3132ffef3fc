"""The operator's command for the embedded index of a stopped gateway."""

from pathlib import Path

import pytest

from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache.tables import SCHEMA
from pentimento.stores.vectors.edge import EdgeVectorIndex
from services.vectordb_gateway.rebuild_index import main
from tests.support.gateways import at_similarity, embedding, running_gateway
from tests.support.older_ledgers import set_version


def rebuild(directory: Path, index_url: str = "") -> int:
    return main(["--index-url", index_url or f"edge://{directory}/index", "--ledger-url", ledger_url(directory)])


def ledger_url(directory: Path) -> str:
    return f"sqlite:///{directory}/ledger.sqlite"


async def test_a_rebuilt_index_holds_what_the_ledger_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path) as gateway:
        ids = {await gateway.store(at_similarity(0.9)) for _ in range(3)}
        gateway.process.stores.index.delete([min(ids)])  # the index has lost one

    assert rebuild(tmp_path) == 0

    assert "3 points" in capsys.readouterr().out
    async with running_gateway(tmp_path) as gateway:
        assert set(gateway.process.stores.index.entry_ids()) == ids
        assert gateway.problems() == []


async def test_unfinished_rebuild_is_reported_and_filled_by_the_gateway(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as gateway:
        entry_id = await gateway.store(embedding(1))

    def refuse(*arguments: object) -> None:
        raise StoreUnavailable("vector index", "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(EdgeVectorIndex, "upsert", refuse)
        assert rebuild(tmp_path) == 1

    told = capsys.readouterr().err
    assert "nothing was changed" not in told
    assert "no space left" in told
    async with running_gateway(tmp_path) as gateway:
        assert list(gateway.process.stores.index.entry_ids()) == [entry_id]


async def test_rebuild_without_a_ledger_makes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))
    (tmp_path / "ledger.sqlite").rename(tmp_path / "elsewhere")

    assert rebuild(tmp_path) == 1

    assert f"there is nothing at {tmp_path / 'ledger.sqlite'}" in capsys.readouterr().err
    assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize("index_url", ["edge://{}/index#1", "edge://{}/index?quantised=true", "qdrant://host:1"])
async def test_rebuild_of_another_url_is_refused_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], index_url: str
) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))

    assert rebuild(tmp_path, index_url.format(tmp_path)) == 1

    told = capsys.readouterr().err
    assert "nothing was changed" in told
    assert "must be edge:///directory" in told


def test_rebuild_leaves_an_older_ledger_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_version(ledger_url(tmp_path), SCHEMA, 9)

    assert rebuild(tmp_path) == 1

    assert "schema version 9" in capsys.readouterr().err
    assert rebuild(tmp_path) == 1
