"""Test that long jobs of the cache's ledger run in parts: others write between them, and an interrupted job is
repaired."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import count
from typing import Any

import pytest

from pentimento.domain.cache import CacheHolding
from pentimento.policies.cache_quota import CacheLimits, gives_way
from pentimento.policies.eviction_rules import LruRule
from pentimento.stores.errors import StoreUnavailable
from pentimento.stores.ledger.cache import evictions as cache_evictions
from pentimento.stores.ledger.cache import uses as cache_uses
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from tests.contract.stores.cache_records import SIZE, STEPS, add, down_to, live, steps_of, uses
from tests.support.watched_statements import watched_statements

Evict = Callable[..., Future[int]]


@pytest.fixture(params=["evict", "evict_items"])
def evict(ledger: CacheLedger, request: pytest.FixtureRequest) -> Evict:
    method: Evict = getattr(ledger, request.param)
    return method


def test_follow_ranks_cache_in_parts(ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_uses, "_RANKED_COUNT", 2)
    entry_ids = [add(ledger, name) for name in "abcde"]
    for number, name in enumerate("aced", 1):
        ledger.note_uses(uses(number, *(f"{name}/{step}" for step in STEPS))).result()

    assert ledger.follow(LruRule()).result() == 15
    assert ledger.follow(LruRule()).result() == 0
    ledger.evict_items(down_to(6), grace_s=0).result()

    assert [steps_of(ledger, entry_id) for entry_id in entry_ids] == [[], [], [], list(STEPS), list(STEPS)]


def test_follow_interrupted_ranks_all_again(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_uses, "_RANKED_COUNT", 2)
    before = open_cache_ledger(ledger_url)
    for name in "abcde":
        add(before, name)
    rank, parts = cache_uses._write, count(1)

    def end_at_the_second(*arguments: Any) -> None:
        if next(parts) == 2:
            raise StoreUnavailable("ledger", "ended")
        rank(*arguments)

    monkeypatch.setattr(cache_uses, "_write", end_at_the_second)
    with pytest.raises(StoreUnavailable, match="ended"):
        before.follow(LruRule()).result()
    before.close()

    after = open_cache_ledger(ledger_url)
    assert after.follow(LruRule()).result() == 15
    assert after.follow(LruRule()).result() == 0
    after.close()


def test_evict_lets_others_write_between_parts(
    ledger: CacheLedger, evict: Evict, monkeypatch: pytest.MonkeyPatch
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

    assert evict(who, grace_s=0).result() == 9
    assert len(left) == 1 and 2 < left[0] < 11
    assert live(ledger, entry_ids) == set(entry_ids[9:])


def test_evict_part_ends_when_choosing_takes_long(
    ledger: CacheLedger, evict: Evict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reading of the clock advances it by half of the time for choosing, so two entries are evicted per part."""
    looks = count()
    monkeypatch.setattr(cache_evictions, "monotonic", lambda: next(looks) * cache_evictions._CHOOSING_S / 2)
    for number in range(9):
        add(ledger, str(number), (5,), tenant=f"t{number}")
    parts = list[int]()

    def who(held: Mapping[str, CacheHolding]) -> str | None:
        parts.append(len(held))
        return gives_way(held, CacheLimits(3, 3 * SIZE))

    assert evict(who, grace_s=0).result() == 6

    # The next part omits tenants without entries.
    assert sorted(set(parts), reverse=True) == [9, 7, 5, 3]


def test_evict_reads_each_tenant_once_for_all_batches(
    ledger: CacheLedger, evict: Evict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evict four entries of each of five tenants, in batches of two: each tenant is read once."""
    monkeypatch.setattr(cache_evictions, "_BATCH_COUNT", 2)
    # Choose all in one part, even on a slow machine.
    monkeypatch.setattr(cache_evictions, "_CHOOSING_S", 60.0)
    for number in range(30):
        add(ledger, str(number), (5,), tenant=f"t{number % 5}")
    ordered = list[str]()

    def note(_cursor: Any, text: str, _parameters: Any) -> None:
        if "ORDER BY" in text:
            ordered.append(text)

    with watched_statements(note):
        evicted = evict(down_to(10, 10), grace_s=0).result()

    assert (evicted, len(ordered)) == (20, 5)


def test_evict_more_than_first_read_leaves_newest(
    ledger: CacheLedger, evict: Evict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_evictions, "_FIRST_COUNT", 2)
    entry_ids = [add(ledger, str(number), (5,)) for number in range(20)]
    new_after = ledger.newest_number() - 10

    assert evict(down_to(3, 3), 0, new_after).result() == 17

    assert live(ledger, entry_ids) == set(entry_ids[17:])
