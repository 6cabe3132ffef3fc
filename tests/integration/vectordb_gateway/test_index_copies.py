"""The operator's commands for the embedded index, on what a gateway left."""

from pathlib import Path

import pytest

from pentimento.policies.cache_quota import CacheLimits, gives_way
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache_tables import MIGRATIONS
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.migrations import migrate
from pentimento.stores.vectors.edge import EdgeVectorIndex
from services.vectordb_gateway.index_copies import main
from services.vectordb_gateway.searches import image_query, latent_query
from tests.gateways import at_similarity, embedding, running_gateway, scope


def command(name: str, directory: Path, *more: str) -> int:
    return main([name, "--index-url", f"edge://{directory}/index", *more])


def ledger_of(directory: Path) -> tuple[str, str]:
    return ("--ledger-url", f"sqlite:///{directory}/ledger.sqlite")


async def test_a_restored_index_is_brought_up_to_the_ledger(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))
    assert command("snapshot", tmp_path, *ledger_of(tmp_path), "--to", f"{tmp_path}/snapshot") == 0
    async with running_gateway(tmp_path) as gateway:
        later = await gateway.store(embedding(0, 1))

    assert command("restore", tmp_path, "--from", f"{tmp_path}/snapshot") == 0

    async with running_gateway(tmp_path) as gateway:
        gateway.maintain()
        answer = await gateway.lookup(embedding(0, 1))
        assert gateway.problems() == []
        assert later in set(gateway.process.stores.index.entry_ids())
    assert answer.text_similarity == pytest.approx(1.0, abs=1e-4)


async def test_a_restored_entry_is_not_found_by_what_it_lost_since(tmp_path: Path) -> None:
    flags = ("--image-thresholds", "0.3:0.4", "--eviction", "lcbfu")
    async with running_gateway(tmp_path, *flags) as gateway:
        entry_id = await gateway.store(embedding(1), image=embedding(1))
    assert command("snapshot", tmp_path, *ledger_of(tmp_path), "--to", f"{tmp_path}/snapshot") == 0
    async with running_gateway(tmp_path, *flags) as gateway:
        ledger, image_alone = gateway.process.stores.ledger, CacheLimits(10, 100)
        assert ledger.evict_items(lambda held: gives_way(held, image_alone), grace_s=0).result() == 5
        gateway.maintain()
    assert command("restore", tmp_path, "--from", f"{tmp_path}/snapshot") == 0

    async with running_gateway(tmp_path, *flags) as gateway:
        index, vector = gateway.process.stores.index, embedding(1).values
        by_latent = index.search(latent_query(vector, ("tenant",), scope()), 10)
        by_image = index.search(image_query(vector, ("tenant",), scope()), 10)
        assert gateway.process.stores.ledger.unindexed(10) == []
    assert (by_latent, [match.entry_id for match in by_image]) == ([], [entry_id])


async def test_a_restored_index_is_written_again_once(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))
    assert command("snapshot", tmp_path, *ledger_of(tmp_path), "--to", f"{tmp_path}/snapshot") == 0
    assert command("restore", tmp_path, "--from", f"{tmp_path}/snapshot") == 0
    async with running_gateway(tmp_path):
        pass

    async with running_gateway(tmp_path) as gateway:
        gateway.process.indexing.reconcile()
        assert gateway.process.stores.ledger.unindexed(10) == []


async def test_a_rebuilt_index_holds_what_the_ledger_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(tmp_path) as gateway:
        ids = {await gateway.store(at_similarity(0.9)) for _ in range(3)}
        gateway.process.stores.index.delete([min(ids)])  # the index has lost one

    assert command("rebuild", tmp_path, *ledger_of(tmp_path)) == 0

    assert "3 points" in capsys.readouterr().out
    async with running_gateway(tmp_path) as gateway:
        assert set(gateway.process.stores.index.entry_ids()) == ids
        assert gateway.problems() == []


async def test_a_rebuild_that_ends_half_way_says_so_and_the_gateway_fills_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_gateway(tmp_path) as gateway:
        entry_id = await gateway.store(embedding(1))

    def refuse(*arguments: object) -> None:
        raise StoreUnavailable("vector index", "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(EdgeVectorIndex, "upsert", refuse)
        assert command("rebuild", tmp_path, *ledger_of(tmp_path)) == 1

    told = capsys.readouterr().err
    assert "nothing was changed" not in told
    assert "no space left" in told
    async with running_gateway(tmp_path) as gateway:
        assert list(gateway.process.stores.index.entry_ids()) == [entry_id]


@pytest.mark.parametrize("missing", ["index", "ledger.sqlite"])
async def test_stores_that_are_not_there_are_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))
    (tmp_path / missing).rename(tmp_path / "elsewhere")

    taken = command("snapshot", tmp_path, *ledger_of(tmp_path), "--to", f"{tmp_path}/snapshot")
    rebuilt = command("rebuild", tmp_path, *ledger_of(tmp_path)) if missing != "index" else 1

    assert (taken, rebuilt) == (1, 1)
    assert f"there is nothing at {tmp_path / missing}" in capsys.readouterr().err
    assert not (tmp_path / missing).exists()


@pytest.mark.parametrize("more", ["#1", "?quantised=true"])
async def test_no_other_index_is_copied_than_the_url_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str
) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.store(embedding(1))
    url = f"edge://{tmp_path}/index{more}"

    taken = main(["snapshot", "--index-url", url, *ledger_of(tmp_path), "--to", f"{tmp_path}/snapshot"])

    assert taken == 1
    assert "must be edge:///directory" in capsys.readouterr().err


def test_an_older_ledger_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = open_engine(ledger_of(tmp_path)[1])
    migrate(engine, "cache", MIGRATIONS[:9])
    (tmp_path / "index").mkdir()

    taken = command("snapshot", tmp_path, *ledger_of(tmp_path), "--to", f"{tmp_path}/snapshot")

    assert taken == 1
    assert "schema version 9" in capsys.readouterr().err
    assert migrate(engine, "cache", MIGRATIONS[:9]) == 9
    engine.dispose()


def test_what_cannot_be_done_is_said_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("restore", tmp_path, "--from", f"{tmp_path}/nowhere") == 1
    assert command("rebuild", tmp_path, *ledger_of(tmp_path)) == 1
    assert main(["restore", "--index-url", "qdrant://host:1", "--from", f"{tmp_path}/nowhere"]) == 1

    assert capsys.readouterr().err.count("nothing was changed") == 3
