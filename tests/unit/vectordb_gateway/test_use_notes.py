"""Uses on their way to the ledger."""

from concurrent.futures import Future

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.policies.eviction_rules import AgedBenefit
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache.records import CacheTotals
from pentimento.stores.ledger.cache.uses import UseBatch
from services.vectordb_gateway.entries.capacity import rule_of
from services.vectordb_gateway.settings import CapacitySettings, EvictionChoice
from services.vectordb_gateway.upkeep import uses
from services.vectordb_gateway.upkeep.uses import UseNotes


class Ledger:
    """Record batches; the first `failures` batches are not acknowledged."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.given: list[UseBatch] = []

    def note_uses(self, batch: UseBatch) -> "Future[int]":
        self.given.append(batch)
        answer: Future[int] = Future()
        if len(self.given) <= self.failures:
            answer.set_exception(StoreUnavailable("ledger", "away"))
        else:
            answer.set_result(len(batch.keys))
        return answer


def note(notes: UseNotes, key: str, taken: bool = True) -> None:
    notes.note(key, from_image=False, taken=taken)


def test_a_batch_that_was_not_acknowledged_keeps_its_number() -> None:
    ledger = Ledger(failures=1)
    notes = UseNotes(ledger)  # type: ignore[arg-type]
    note(notes, "a")

    with pytest.raises(StoreUnavailable):
        notes.write()
    note(notes, "b")
    notes.write()

    assert [(batch.number, batch.keys) for batch in ledger.given] == [(1, ("a",)), (1, ("a",)), (2, ("b",))]
    assert len({batch.source for batch in ledger.given}) == 1


def test_entry_that_worker_could_not_use_is_not_counted() -> None:
    ledger = Ledger()
    notes = UseNotes(ledger)  # type: ignore[arg-type]

    note(notes, "latent")
    note(notes, "gone", taken=False)
    notes.note("image", from_image=True, taken=True)
    notes.write()

    assert [batch.keys for batch in ledger.given] == [("latent", "image")]
    assert (notes.taken_count, notes.passed_over_count) == (2, 1)


def test_a_use_has_a_key() -> None:
    notes = UseNotes(Ledger())  # type: ignore[arg-type]

    with pytest.raises(InvalidArgument, match="key"):
        note(notes, "")


def test_uses_beyond_the_limit_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uses, "_MAX_NOTED_COUNT", 5)
    monkeypatch.setattr(uses, "_BATCH_COUNT", 2)
    ledger = Ledger()
    notes = UseNotes(ledger)  # type: ignore[arg-type]

    for number in range(7):
        note(notes, str(number))
    notes.write()

    assert [batch.keys for batch in ledger.given] == [("0", "1"), ("2", "3"), ("4",)]


@pytest.mark.parametrize(
    ("held", "expected"),
    [(CacheTotals(0, 0, 0, 0), 8192), (CacheTotals(2, 10, 1000, 0), 1024), (CacheTotals(2, 10, 10, 0), 8192)],
)
def test_rule_s_memory_follows_the_binding_limit(held: CacheTotals, expected: int) -> None:
    """1,000 entries of six items, or 100,000 bytes of items that have 100 or one each; to the next power of two."""
    settings = CapacitySettings(max_entries=1000, max_size_bytes=100_000)

    rule = rule_of(settings, EvictionChoice.AGED, held)

    assert isinstance(rule, AgedBenefit)
    assert rule.capacity_count == expected


def test_a_cache_that_evicts_nothing_is_ranked_by_age() -> None:
    settings, nothing = CapacitySettings(), CacheTotals(0, 0, 0, 0)

    assert repr(rule_of(settings, EvictionChoice.NONE, nothing)) == "FifoRule()"
