"""Test backups of ledgers and objects, on every ledger and object store."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lab.fixtures.postgresql import PostgresqlServer
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.jobs import RequestState
from pentimento.stores.backup import back_up, main, restore
from pentimento.stores.ledger import open_journal
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.ownership import claim
from pentimento.stores.objects.store import refer_to
from tests.support.journals import an_accepted_request, complete_request

IMAGE = bytes(range(256)) * 4


@pytest.fixture
def saved(ledger_url: str, objects_url: str, tmp_path: Path) -> Path:
    """Return the backup of a journal with a finished and an unfinished request, and of their objects."""
    store = open_objects(objects_url)
    with closing(open_journal(ledger_url)) as journal:
        claim(store, journal.identity().result())
        store.put("results/done", IMAGE)
        store.put("inputs/open", b"input")
        complete_request(journal, "done", 105.0).result()
        journal.accept(an_accepted_request("open", idempotency_key="key")).result()
    back_up(tmp_path / "backup", [ledger_url], [objects_url])
    return tmp_path / "backup"


def wiped(ledger_url: str, objects: ObjectStore, request: pytest.FixtureRequest) -> None:
    """Delete the ledger and the objects."""
    for key in list(objects.keys()):
        objects.delete(key)
    if ledger_url.startswith("sqlite"):
        for file in Path(ledger_url.removeprefix("sqlite:///")).parent.glob("ledger.sqlite*"):
            file.unlink()
        return
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    schema = ledger_url.rpartition("%3D")[2]
    server.execute(f"DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema}")


def test_restored_stores_have_the_requests_and_objects_of_the_backup(
    saved: Path, ledger_url: str, objects_url: str, objects: ObjectStore, request: pytest.FixtureRequest
) -> None:
    with closing(open_journal(ledger_url)) as journal:
        before = journal.claim_epoch("former").result(), journal.identity().result()
        journal.accept(an_accepted_request("later")).result()
    wiped(ledger_url, objects, request)

    restore(saved, [ledger_url], [objects_url])

    with closing(open_journal(ledger_url)) as journal:
        done, unfinished = (journal.get(name, "tenant").result() for name in ("done", "open"))
        assert done is not None and (done.state, unfinished is not None) == (RequestState.COMPLETED, True)
        assert journal.get("later", "tenant").result() is None
        assert [one.request.idempotency_key for one in journal.unfinished().result()] == ["key"]
        # The workers that served the former journal accept the epoch, and no other journal owns the objects.
        assert journal.claim_epoch("restored").result() > before[0]
        name = journal.identity().result()
        assert name != before[1]
        claim(objects, name)
    assert sorted(objects.keys()) == ["inputs/open", "owner/journal", "results/done"]
    assert objects.get(refer_to("results/done", IMAGE)) == IMAGE


def test_restore_above_an_epoch_claims_a_later_one(
    saved: Path, ledger_url: str, objects_url: str, objects: ObjectStore, request: pytest.FixtureRequest
) -> None:
    wiped(ledger_url, objects, request)
    # Ahead of this clock, as if the lost host's had been.
    with closing(open_journal(f"sqlite:///{saved.parent}/other.sqlite")) as other:
        newest = other.claim_epoch("former").result() + 3_600_000

    restore(saved, [ledger_url], [objects_url], above=newest)

    with closing(open_journal(ledger_url)) as journal:
        assert journal.claim_epoch("restored").result() > newest
    with pytest.raises(InvalidArgument, match="above: must be at most"):
        restore(saved, [ledger_url], [objects_url], above=1 << 62)


def refusal(*arguments: object, **named: object) -> str:
    """Return the reason and the message of a restore that is refused."""
    with pytest.raises(FailedPrecondition) as refused:
        restore(*arguments, **named)  # type: ignore[arg-type] # passed on
    return f"{refused.value.reason}: {refused.value.message}"


def test_restore_over_a_ledger_or_objects_is_refused_and_changes_nothing(
    saved: Path, ledger_url: str, objects_url: str, objects: ObjectStore, tmp_path: Path
) -> None:
    before = sorted(objects.keys())
    kept = f"sqlite:///{tmp_path}/empty.sqlite" if ledger_url.startswith("sqlite") else None

    assert refusal(saved, [ledger_url], [objects_url]).startswith("TARGET_NOT_EMPTY: ledger_url")
    if kept is not None:
        assert refusal(saved, [kept], [objects_url]).startswith("TARGET_NOT_EMPTY: objects_url")
        assert not (tmp_path / "empty.sqlite").exists()

    assert sorted(objects.keys()) == before


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def alter(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("objects_url", ["filesystem"], indirect=True)
@pytest.mark.parametrize("damage", [cut, alter, Path.unlink])
@pytest.mark.parametrize("part", ["ledger-0", "objects-0/objects/*/results.done", "keys/key", "manifest.json"])
def test_restore_of_a_damaged_backup_names_the_file_and_writes_nothing(
    saved: Path, ledger_url: str, objects_url: str, tmp_path: Path, part: str, damage: Callable[[Path], None]
) -> None:
    (tmp_path / "key").write_text("secret")
    back_up(tmp_path / "again", [ledger_url], [objects_url], [tmp_path / "key"])
    (file,) = (tmp_path / "again").glob(part)
    if (part, damage) == ("manifest.json", alter):
        file.write_text(file.read_text().replace("sha256:", "sha256:0", 1))
    else:
        damage(file)
    target = tmp_path / "target"

    words = refusal(tmp_path / "again", [f"sqlite:///{target}/l.sqlite"], [f"file://{target}/objects"])

    assert words.startswith("BACKUP_DAMAGED: ")
    assert (file.name.replace(".done", "/done") in words) == (part != "manifest.json" or damage is not alter)
    assert not target.exists()


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("objects_url", ["filesystem"], indirect=True)
def test_backup_command_refuses_used_folders_missing_ledgers_and_other_stores(
    saved: Path, ledger_url: str, objects_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def errors(*words: object) -> str:
        assert main([*map(str, words)]) == 1
        return capsys.readouterr().err

    stores = ("--ledger-url", ledger_url, "--objects-url", objects_url)
    assert "folder: must be a new or an empty folder" in errors("backup", saved, *stores)
    other = ("--ledger-url", f"sqlite:///{tmp_path}/missing.sqlite", "--objects-url", objects_url)
    assert "ledger_url: must name a ledger, there is none" in errors("backup", tmp_path / "new", *other)
    assert not (tmp_path / "missing.sqlite").exists() and not (tmp_path / "new" / "manifest.json").exists()
    postgresql = ("--ledger-url", "postgresql+psycopg://user@host/database", "--objects-url", objects_url)
    assert "1 object stores and ledgers of sqlite" in errors("restore", saved, *postgresql)
    assert "must be sqlite:////absolute/path" in errors(
        "backup", tmp_path / "x", "--ledger-url", "mysql://h/d", *stores
    )


@pytest.mark.server
def test_backup_without_pg_dump_names_the_package(
    postgresql: PostgresqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgresql.new_database()
    open_journal(url).close()
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(FailedPrecondition, match="pg_dump is not installed") as refused:
        back_up(tmp_path / "backup", [url], [])
    assert refused.value.reason == "PROGRAM_MISSING"


def test_backup_copies_while_a_journal_writes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.sqlite"
    with closing(open_journal(url)) as journal:
        written = [journal.accept(an_accepted_request(f"r{number}")) for number in range(500)]
        written[0].result()
        back_up(tmp_path / "backup", [url], [])
        assert len([one.result() for one in written]) == 500

    with closing(sqlite3.connect(tmp_path / "backup" / "ledger-0")) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert copy.execute("SELECT count(*) FROM journal_requests WHERE request_id = 'r0'").fetchall() == [(1,)]
    assert json.loads((tmp_path / "backup" / "manifest.json").read_text())["ledgers"][0]["kind"] == "sqlite"
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
