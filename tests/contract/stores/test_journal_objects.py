"""Test the journal's spool, and the limits of one round of forgetting and returning pages."""

import shutil
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from pentimento.domain.generation import ObjectReference
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.journal.records import SpooledObject
from tests.support.journals import complete_request

OBJECT = ObjectReference("results/1", "sha256:1", 4)


def test_spooled_object_stays_over_restart_until_unspooled(journal: Journal, ledger_url: str) -> None:
    assert journal.objects.spool("a", OBJECT, b"\x00bcd").result()
    assert not journal.objects.spool("a", OBJECT, b"\x00bcd").result(), "the caller may not have heard the answer"
    journal.close()

    with closing(open_journal(ledger_url)) as reopened:
        spool = reopened.objects
        assert (spool.spooled().result(), spool.read_spooled("results/1").result()) == (
            [SpooledObject("a", OBJECT)],
            b"\x00bcd",
        )
        assert spool.unspool("results/1").result()
        assert not spool.unspool("results/1").result()
        assert spool.read_spooled("results/1").result() is None
        assert spool.spooled().result() == []


def test_journal_files_are_private(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    journal = open_journal(f"sqlite:///{directory}/ledger.sqlite")
    journal.claim_epoch("f").result()

    modes = {file.name: file.stat().st_mode & 0o777 for file in (directory, *directory.iterdir())}

    journal.close()
    assert modes == {"state": 0o700, "ledger.sqlite": 0o600, "ledger.sqlite-wal": 0o600, "ledger.sqlite-shm": 0o600}


def test_free_bytes_of_server_is_none(journal: Journal, ledger_url: str) -> None:
    free = journal.objects.free_bytes()

    assert (free is not None) == ledger_url.startswith("sqlite")


def test_forget_stops_at_bytes_or_200_images(journal: Journal) -> None:
    for number in range(202):
        complete_request(journal, f"r{number}", at=float(number))

    counts = [len(journal.objects.forget_pictures("tenant", size_bytes).result()) for size_bytes in (10, 10**9, 10**9)]

    assert counts == [1, 200, 1]


def test_give_back_pages_returns_1024_pages_at_once(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:///{tmp_path}/ledger.sqlite")
    journal.objects.spool("a", OBJECT, bytes(8 << 20)).result()
    journal.objects.unspool(OBJECT.key).result()
    engine = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite")

    def free_page_count() -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("PRAGMA freelist_count")).scalar_one())

    counts = [free_page_count()]
    for _ in range(3):
        journal.objects.give_back_pages().result()
        counts.append(free_page_count())
    journal.close()
    engine.dispose()

    assert (counts[0] - counts[1], counts[3]) == (1024, 0)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1 << 20


def test_free_bytes_are_those_of_the_disk(tmp_path: Path) -> None:
    with closing(open_journal(f"sqlite:///{tmp_path}/ledger.sqlite")) as journal:
        # Other processes write there too.
        before = shutil.disk_usage(tmp_path).free
        free_bytes = journal.objects.free_bytes()
        after = shutil.disk_usage(tmp_path).free

    assert free_bytes is not None
    assert 0.9 * min(before, after) <= free_bytes <= 1.1 * max(before, after)


def test_free_bytes_of_missing_disk_is_none(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    with closing(open_journal(f"sqlite:///{home}/ledger.sqlite")) as journal:
        home.rename(away)
        assert journal.objects.free_bytes() is None
        away.rename(home)

        assert journal.objects.free_bytes()
