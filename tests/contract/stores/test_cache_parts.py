"""Long jobs of the cache's ledger go in parts: others write in between, and one that ends midway is made good."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from itertools import count
from typing import Any

import pytest

from pentimento.domain.cache import CacheHolding
from pentimento.policies.cache_quota import CacheLimits, gives_way
from pentimento.policies.eviction_rules import LruRule
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger import cache_access, cache_evictions
from pentimento.stores.ledger.cache_ledger import CacheLedger, open_cache_ledger
from tests.contract.stores.access_records import SIZE, STEPS, add, down_to, steps_of, uses
from tests.contract.stores.cache_records import live


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[CacheLedger]:
    ledger = open_cache_ledger(ledger_url)
    yield ledger
    assert ledger.check_integrity() == []
    ledger.close()


def test_a_cache_is_ranked_in_parts(ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_access, "_RANKED_COUNT", 2)
    entry_ids = [add(ledger, name) for name in "abcde"]
    for number, name in enumerate("aced", 1):
        ledger.note_uses(uses(number, *(f"{name}/{step}" for step in STEPS))).result()

    assert ledger.follow(LruRule()).result() == 15
    assert ledger.follow(LruRule()).result() == 0
    ledger.evict_items(down_to(6), grace_s=0).result()

    assert [steps_of(ledger, entry_id) for entry_id in entry_ids] == [[], [], [], list(STEPS), list(STEPS)]


def test_a_cache_that_was_ranked_in_part_is_ranked_anew(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_access, "_RANKED_COUNT", 2)
    before = open_cache_ledger(ledger_url)
    for name in "abcde":
        add(before, name)
    rank, parts = cache_access._write, count(1)

    def end_at_the_second(*arguments: Any) -> None:
        if next(parts) == 2:
            raise StoreUnavailable("ledger", "ended")
        rank(*arguments)

    monkeypatch.setattr(cache_access, "_write", end_at_the_second)
    with pytest.raises(StoreUnavailable, match="ended"):
        before.follow(LruRule()).result()
    before.close()

    after = open_cache_ledger(ledger_url)
    assert after.follow(LruRule()).result() == 15
    assert after.follow(LruRule()).result() == 0
    after.close()


@pytest.mark.parametrize("of_items", [False, True])
def test_what_goes_goes_in_parts_between_which_others_write(
    ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch, of_items: bool
) -> None:
    monkeypatch.setattr(cache_evictions, "_PART_COUNT", 3)
    monkeypatch.setattr(cache_evictions, "_BATCH_COUNT", 3)
    entry_ids = [add(ledger, str(number), (5,)) for number in range(11)]
    seen: list[Future[int]] = []

    def who(held: Mapping[str, CacheHolding]) -> str | None:
        if not seen:
            seen.append(ledger.unpin("t", "nobody"))
            seen[0].add_done_callback(lambda _: left.append(len(live(ledger, entry_ids))))
        return gives_way(held, CacheLimits(2, 2 * SIZE))

    left: list[int] = []
    evict = ledger.evict_items if of_items else ledger.evict

    assert evict(who, grace_s=0).result() == 9
    assert len(left) == 1 and 2 < left[0] < 11
    assert live(ledger, entry_ids) == set(entry_ids[9:])
