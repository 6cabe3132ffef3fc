"""Fill a real disk: refusals are typed, no partial data remains, and work continues after space was freed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.stores.errors import StoreFull
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest
from pentimento.stores.objects import open_objects
from tests.support.small_disks import mounted_tmpfs

pytestmark = pytest.mark.faults

SIZE_BYTES = 4 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of four mebibytes."""
    with mounted_tmpfs(tmp_path, SIZE_BYTES) as mount:
        yield mount


def test_objects_are_whole_or_absent_on_a_full_disk(small_disk: Path) -> None:
    store = open_objects(f"file://{small_disk}/objects")
    references = []
    with pytest.raises(StoreFull):
        for number in range(1000):
            references.append(store.put(f"k/{number}", bytes([number % 256]) * 100_000))

    assert len(references) > 20
    assert sorted(store.keys()) == sorted(reference.key for reference in references)
    assert store.check_integrity(references) == []
    store.delete(references[0].key)
    assert store.get(store.put("k/again", bytes(50_000))) == bytes(50_000)


def test_journal_on_full_disk_refuses_new_and_keeps_accepted_requests(small_disk: Path) -> None:
    url = f"sqlite:///{small_disk}/journal.sqlite"
    somebody_elses = small_disk / "somebody-elses"
    somebody_elses.write_bytes(bytes(128 * 1024))
    journal = open_journal(url)
    accepted = []
    with pytest.raises(StoreFull):
        for number in range(1000):
            journal.accept(AcceptedRequest(f"r{number}", "t", bytes(100_000), "hash", 1.0)).result()
            accepted.append(f"r{number}")
    journal.close()

    somebody_elses.unlink()
    journal = open_journal(url)
    unfinished = [record.request.request_id for record in journal.unfinished().result()]
    journal.close()

    assert len(accepted) > 5
    assert sorted(unfinished) == sorted(accepted)
