"""Keep rows of the ledger in memory: read once, and dropped with their entries."""

from collections.abc import Sequence

from pentimento.stores.ledger.cache.records import CachedEntry
from services.vectordb_gateway.lookup.repeats import EntryRows


class CountingLedger:
    """Entries by id, with a record of reads."""

    def __init__(self, *entry_ids: str) -> None:
        self.entries = {entry_id: CachedEntry(entry_id, "tenant", 1.0, 0) for entry_id in entry_ids}
        self.read: list[list[str]] = []
        self.removal_count = 0

    def live_entries(self, entry_ids: Sequence[str]) -> dict[str, CachedEntry]:
        self.read.append(list(entry_ids))
        return {entry_id: self.entries[entry_id] for entry_id in entry_ids if entry_id in self.entries}

    def remove(self, entry_id: str) -> None:
        del self.entries[entry_id]
        self.removal_count += 1


class Times:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def rows_of(ledger: CountingLedger, row_age_s: float = 10.0) -> tuple[EntryRows, Times]:
    times = Times()
    return EntryRows(ledger, row_age_s, times), times  # type: ignore[arg-type]


def test_missing_rows_are_read_at_once_and_kept() -> None:
    ledger = CountingLedger("a", "b", "c")
    rows, _ = rows_of(ledger)

    first, second = rows.read(["a", "b", "gone"]), rows.read(["b", "c", "a"])

    assert set(first) == {"a", "b"} and set(second) == {"a", "b", "c"}
    assert ledger.read == [["a", "b", "gone"], ["c"]]
    assert rows.kept(["a", "c", "other"]) == {"a": ledger.entries["a"], "c": ledger.entries["c"]}


def test_entry_removed_by_this_process_is_not_returned() -> None:
    ledger = CountingLedger("a", "b")
    rows, _ = rows_of(ledger)
    rows.read(["a", "b"])

    ledger.remove("a")

    assert rows.kept(["a", "b"]) == {}
    assert set(rows.read(["a", "b"])) == {"b"}


def test_entry_removed_during_read_is_read_again() -> None:
    ledger = CountingLedger("a")
    rows, _ = rows_of(ledger)
    read = ledger.live_entries

    def read_and_lose(entry_ids: Sequence[str]) -> dict[str, CachedEntry]:
        found = read(entry_ids)
        ledger.remove("a")
        return found

    ledger.live_entries = read_and_lose  # type: ignore[method-assign]
    rows.read(["a"])

    assert rows.kept(["a"]) == {}


def test_row_is_read_again_after_its_age() -> None:
    ledger = CountingLedger("a")
    rows, times = rows_of(ledger, row_age_s=10.0)
    rows.read(["a"])

    times.now_s += 9.9
    assert "a" in rows.kept(["a"])
    times.now_s += 0.2
    assert rows.kept(["a"]) == {}


def test_without_an_age_nothing_is_kept() -> None:
    ledger = CountingLedger("a")
    rows, _ = rows_of(ledger, row_age_s=0.0)

    rows.read(["a"])
    rows.read(["a"])

    assert ledger.read == [["a"], ["a"]]


def test_memory_is_bounded() -> None:
    many = [str(number) for number in range(5000)]
    ledger = CountingLedger(*many)
    rows, _ = rows_of(ledger)

    rows.read(many[:4000])
    rows.read(many[4000:])

    assert len(rows.kept(many)) == 1000
