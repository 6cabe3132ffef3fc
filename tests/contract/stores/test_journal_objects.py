"""What the journal promises of objects, on SQLite and on PostgreSQL."""

import shutil
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from pentimento.domain.generation import Attempt, ObjectReference
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger import Journal, open_journal
from pentimento.stores.ledger.database import open_engine
from pentimento.stores.ledger.records import AcceptedRequest, KeptResults, ResultRecord, SpooledObject

OBJECT = ObjectReference("results/1", "sha256:1", 4)


def complete(journal: Journal, request_id: str, finished_at: float, size_bytes: int = 10, tenant: str = "a") -> None:
    attempt = Attempt(request_id, 1, 1, "f", 1, tenant)
    image = ObjectReference(f"results/{request_id}", f"sha256:{request_id}", size_bytes)
    journal.accept(AcceptedRequest(request_id, tenant, b"body", "", accepted_at=0.0)).result()
    journal.start_attempt(attempt, "w1").result()
    journal.commit_result(attempt, ResultRecord(image, "png", 8, 8, b"provenance", finished_at)).result()


def kept_pictures(journal: Journal, tenant: str, *request_ids: str) -> list[str]:
    records = [journal.get(request_id, tenant).result() for request_id in request_ids]
    assert all(record is not None and record.result is not None for record in records)
    return [record.request.request_id for record in records if record and record.result and record.result.image.key]


def test_what_waits_for_its_store_survives_its_process(ledger_url: str) -> None:
    journal = open_journal(ledger_url)
    journal.objects.spool("a", OBJECT, b"\x00abc").result()
    journal.close()

    journal = open_journal(ledger_url)
    waiting, data = journal.objects.spooled().result(), journal.objects.read_spooled("results/1").result()
    journal.close()

    assert (waiting, data) == ([SpooledObject("a", OBJECT)], b"\x00abc")


def test_an_object_waits_once_and_until_it_is_taken_out(journal: Journal) -> None:
    spool = journal.objects

    assert spool.spool("a", OBJECT, b"abcd").result()
    assert not spool.spool("a", OBJECT, b"abcd").result(), "the caller may not have heard the answer"
    assert spool.unspool("results/1").result()
    assert not spool.unspool("results/1").result()
    assert spool.read_spooled("results/1").result() is None
    assert spool.spooled().result() == []


def test_the_oldest_pictures_of_one_tenant_are_forgotten_and_their_requests_stay(journal: Journal) -> None:
    for request_id, finished_at in (("new", 30.0), ("old", 10.0), ("middle", 20.0)):
        complete(journal, request_id, finished_at)
    complete(journal, "other's", 1.0, tenant="b")

    forgotten = journal.objects.forget_pictures("a", size_bytes=11).result()

    assert [reference.key for reference in forgotten] == ["results/old", "results/middle"]
    assert kept_pictures(journal, "a", "old", "middle", "new") == ["new"]
    assert kept_pictures(journal, "b", "other's") == ["other's"]
    assert journal.objects.forget_pictures("a", size_bytes=0).result() == []


def test_what_is_kept_is_counted_by_tenant(journal: Journal) -> None:
    complete(journal, "r1", 1.0, size_bytes=10)
    complete(journal, "r2", 2.0, size_bytes=20)
    complete(journal, "r3", 3.0, size_bytes=5, tenant="b")
    journal.accept(AcceptedRequest("r4", "b", b"body", "", accepted_at=0.0)).result()
    journal.finish("r4", RequestState.FAILED, "X", "").result()
    journal.accept(AcceptedRequest("unfinished", "c", b"body", "", accepted_at=0.0)).result()
    journal.objects.forget_pictures("a", size_bytes=1).result()

    kept = journal.objects.kept().result()

    assert sorted(kept, key=lambda one: one.tenant) == [KeptResults("a", 2, 20), KeptResults("b", 2, 5)]


def test_keys_that_rows_name_are_told_apart(journal: Journal) -> None:
    complete(journal, "r1", 1.0)
    complete(journal, "r2", 2.0)
    journal.objects.forget_pictures("a", size_bytes=1).result()

    assert journal.objects.named(["results/r1", "results/r2", "results/r3"]).result() == {"results/r2"}


def test_what_a_request_was_asked_is_not_kept_beyond_its_end(journal: Journal) -> None:
    complete(journal, "completed", 1.0)
    journal.accept(AcceptedRequest("failed", "a", b"body", "", accepted_at=0.0)).result()
    journal.finish("failed", RequestState.FAILED, "X", "").result()

    for request_id in ("completed", "failed"):
        record = journal.get(request_id, "a").result()
        assert record is not None and record.request.body == b""


def test_only_one_tenants_oldest_requests_are_forgotten_where_one_is_named(journal: Journal) -> None:
    for request_id, finished_at, tenant in (("r1", 1.0, "a"), ("r2", 2.0, "a"), ("r3", 0.5, "b")):
        complete(journal, request_id, finished_at, tenant=tenant)

    forgotten = journal.forget_finished(finished_before=10.0, limit_count=1, tenant="a").result()

    assert [record.request.request_id for record in forgotten] == ["r1"]


def test_the_file_shrinks_once_large_objects_are_gone(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:///{tmp_path}/ledger.sqlite")
    journal.objects.spool("a", OBJECT, bytes(4 << 20)).result()
    journal.objects.unspool(OBJECT.key).result()
    for _ in range(2):
        journal.objects.give_back_pages().result()
    journal.close()

    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1 << 20


def test_the_journal_is_its_owners_alone(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    journal = open_journal(f"sqlite:///{directory}/ledger.sqlite")
    journal.claim_epoch("f").result()

    modes = {file.name: file.stat().st_mode & 0o777 for file in (directory, *directory.iterdir())}

    journal.close()
    assert modes == {"state": 0o700, "ledger.sqlite": 0o600, "ledger.sqlite-wal": 0o600, "ledger.sqlite-shm": 0o600}


def test_a_journal_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    open_journal(f"sqlite:///{file}").close()
    file.chmod(0o644)

    open_journal(f"sqlite:///{file}").close()

    assert file.stat().st_mode & 0o777 == 0o600


def test_only_a_file_has_a_disk_that_can_fill_up(journal: Journal, ledger_url: str) -> None:
    free = journal.objects.free_bytes()

    assert (free is not None) == ledger_url.startswith("sqlite")


def test_so_many_bytes_of_pictures_are_forgotten_and_no_more_than_200_pictures_at_once(journal: Journal) -> None:
    for number in range(202):
        attempt = Attempt(f"r{number}", 1, 1, "f", 1, "a")
        image = ObjectReference(f"results/{number}", f"sha256:{number}", 10)
        journal.accept(AcceptedRequest(f"r{number}", "a", b"body", "", accepted_at=0.0))
        journal.start_attempt(attempt, "w1")
        journal.commit_result(attempt, ResultRecord(image, "png", 8, 8, b"", float(number)))

    counts = [len(journal.objects.forget_pictures("a", size_bytes).result()) for size_bytes in (10, 10**9, 10**9)]

    assert counts == [1, 200, 1]


def test_the_file_gives_back_no_more_than_1024_pages_at_once(tmp_path: Path) -> None:
    journal = open_journal(f"sqlite:///{tmp_path}/ledger.sqlite")
    journal.objects.spool("a", OBJECT, bytes(8 << 20)).result()
    journal.objects.unspool(OBJECT.key).result()
    engine = open_engine(f"sqlite:///{tmp_path}/ledger.sqlite")

    def free_page_count() -> int:
        with engine.connect() as connection:
            return int(connection.execute(text("PRAGMA freelist_count")).scalar_one())

    before = free_page_count()
    journal.objects.give_back_pages().result()
    after = free_page_count()
    journal.close()
    engine.dispose()

    assert before - after == 1024


def test_what_is_free_is_counted_in_bytes(tmp_path: Path) -> None:
    with closing(open_journal(f"sqlite:///{tmp_path}/ledger.sqlite")) as journal:
        # Others write there too.
        before = shutil.disk_usage(tmp_path).free
        free_bytes = journal.objects.free_bytes()
        after = shutil.disk_usage(tmp_path).free

    assert free_bytes is not None
    assert 0.9 * min(before, after) <= free_bytes <= 1.1 * max(before, after)


def test_of_a_disk_that_cannot_be_asked_nobody_knows_what_is_free(tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    with closing(open_journal(f"sqlite:///{home}/ledger.sqlite")) as journal:
        home.rename(away)
        assert journal.objects.free_bytes() is None
        away.rename(home)

        assert journal.objects.free_bytes()
