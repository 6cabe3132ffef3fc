"""Rounds of maintenance over a scripted ledger and store."""

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from pentimento.stores.errors import StoreUnavailable
from services.vectordb_gateway.settings import GatewayBounds
from services.vectordb_gateway.upkeep import maintenance
from services.vectordb_gateway.upkeep.maintenance import Maintenance


def done(value: Any = None) -> "Future[Any]":
    found: Future[Any] = Future()
    found.set_result(value)
    return found


class DoomedObjects:
    """Ledger and store in one: deletable objects, some pinned in the meantime."""

    cache_id = "c"

    def __init__(self, *keys: str) -> None:
        self.stored = set(keys)
        self.deletable = list(keys)
        self.pinned: set[str] = set()
        self.forgotten: list[str] = []
        self.is_away = False
        self.refused: set[str] = set()
        self.asked: list[str] = []
        self.unknown: set[str] = set()
        self.listed_count = 0

    def expire_grants(self) -> "Future[int]":
        return done(0)

    def deletable_keys(self, limit_count: int) -> list[str]:
        return [key for key in self.deletable if key not in self.forgotten][:limit_count]

    def claim_deletion(self, keys: Sequence[str]) -> "Future[list[str]]":
        self.deletable = [key for key in self.deletable if key not in self.pinned]
        return done([key for key in keys if key not in self.pinned])

    def forget_objects(self, keys: Sequence[str]) -> "Future[None]":
        self.forgotten += keys
        return done()

    def known_keys(self, keys: Sequence[str]) -> set[str]:
        return set(keys) - self.unknown

    def keys(self, prefix: str) -> list[str]:
        self.listed_count += 1
        if self.is_away:
            raise StoreUnavailable("object store", "it is away")
        return sorted(self.stored)

    def delete(self, key: str) -> None:
        self.asked.append(key)
        if key in self.refused:
            raise StoreUnavailable("object store", "it is locked")
        self.stored.remove(key)

    def sweep_uploads(self, unfinished_for_s: float) -> int:
        return 0


@pytest.fixture
def doomed() -> DoomedObjects:
    return DoomedObjects("cache/c/a", "cache/c/b")


class CountedIndexing:
    """Counts comparisons of index and ledger."""

    def __init__(self) -> None:
        self.compared_count = 0
        self.may_lack_points = False
        self.is_away = False

    def reconcile(self) -> None:
        if self.is_away:
            raise StoreUnavailable("vector index", "it is away")
        self.compared_count += 1

    def index_new(self) -> None:
        """Do nothing: no entry is new."""

    def remove_doomed(self) -> None:
        """Do nothing: no entry is doomed."""


def maintenance_of(doomed: DoomedObjects, indexing: CountedIndexing) -> Maintenance:
    nothing = SimpleNamespace(
        measure_store=lambda: None, enforce=lambda: None, follow_rule=lambda **_: None, maintain=lambda: None
    )
    return Maintenance(doomed, doomed, indexing, nothing, GatewayBounds(), nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize(("why", "stays", "goes"), [("pinned", "b", "a"), ("refused", "a", "b")])
def test_object_that_stays_keeps_no_other(doomed: DoomedObjects, why: str, stays: str, goes: str) -> None:
    setattr(doomed, why, {f"cache/c/{stays}"})

    maintenance_of(doomed, CountedIndexing()).run_round()

    assert (doomed.stored, doomed.forgotten) == ({f"cache/c/{stays}"}, [f"cache/c/{goes}"])


def test_refused_orphan_keeps_no_other() -> None:
    doomed = DoomedObjects(*(f"cache/c/{name}" for name in "abcdefgh"))
    doomed.deletable = []
    doomed.unknown = set(doomed.stored)
    doomed.refused = {"cache/c/a"}

    maintenance_of(doomed, CountedIndexing()).run_round()

    assert doomed.stored == {"cache/c/a"}


def test_refused_orphan_does_not_list_the_store_again() -> None:
    doomed = DoomedObjects("cache/c/a")
    doomed.deletable = []
    doomed.unknown = doomed.refused = {"cache/c/a"}
    maintenance = maintenance_of(doomed, CountedIndexing())

    for _ in range(5):
        maintenance.run_round()

    assert doomed.listed_count == 1


@pytest.mark.parametrize("kind", ["doomed", "orphan"])
def test_many_refused_objects_keep_no_other(kind: str) -> None:
    keys = [f"cache/c/{number:03d}" for number in range(400)]
    doomed = DoomedObjects(*keys)
    doomed.refused = set(keys[:20])
    if kind == "orphan":
        doomed.deletable, doomed.unknown = [], set(keys)
    maintenance = maintenance_of(doomed, CountedIndexing())

    for _ in range(4):
        maintenance.run_round()

    assert doomed.stored == doomed.refused


def test_refused_object_is_tried_again_after_all_others(doomed: DoomedObjects) -> None:
    doomed.refused = {"cache/c/a"}
    maintenance = maintenance_of(doomed, CountedIndexing())
    maintenance.run_round()
    doomed.refused = set()

    maintenance.run_round()

    assert doomed.stored == set()


def test_absent_store_is_not_called_for_every_object() -> None:
    keys = [f"cache/c/{number}" for number in range(100)]
    doomed = DoomedObjects(*keys)
    doomed.refused = set(keys)

    maintenance_of(doomed, CountedIndexing()).run_round()

    assert doomed.asked == keys[:8]


def test_silent_store_is_called_once(doomed: DoomedObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    doomed.refused = set(doomed.stored)
    monkeypatch.setattr(maintenance, "time", SimpleNamespace(monotonic=lambda: 30.0 * len(doomed.asked)))

    maintenance_of(doomed, CountedIndexing()).run_round()

    assert doomed.asked == ["cache/c/a"]


def test_comparison_runs_at_start_and_at_its_interval(doomed: DoomedObjects) -> None:
    indexing = CountedIndexing()
    maintenance = maintenance_of(doomed, indexing)

    maintenance.run_round()
    maintenance.run_round()
    assert indexing.compared_count == 1

    maintenance.request_reconciliation()
    maintenance.run_round()
    assert indexing.compared_count == 2


def test_absent_store_does_not_stop_the_index_comparison(doomed: DoomedObjects) -> None:
    indexing = CountedIndexing()
    doomed.is_away = True

    maintenance_of(doomed, indexing).run_round()

    assert indexing.compared_count == 1


@pytest.mark.parametrize(("in_first", "in_second", "count"), [("is_away", "", 1), ("", "may_lack_points", 2)])
def test_failed_comparison_or_restarted_index_is_compared_next_round(
    doomed: DoomedObjects, in_first: str, in_second: str, count: int
) -> None:
    indexing = CountedIndexing()
    maintenance = maintenance_of(doomed, indexing)

    for now in (in_first, in_second):
        indexing.is_away, indexing.may_lack_points = now == "is_away", now == "may_lack_points"
        maintenance.run_round()

    # The store, which did not fail, is not listed again.
    assert (indexing.compared_count, doomed.listed_count) == (count, 1)
