"""How grants and entries end: expired, released, evicted; and what becomes of their objects."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.domain.cache import CacheHolding
from pentimento.domain.errors import NotFound
from pentimento.policies.cache_quota import CacheLimits, gives_way
from pentimento.stores.ledger.cache_evictions import WhoGivesWay
from pentimento.stores.ledger.cache_ledger import CacheLedger
from tests.contract.stores.cache_records import add, commit, grant, live


def test_a_released_grant_is_gone_and_its_keys_are_to_be_deleted(ledger: CacheLedger) -> None:
    ledger.reserve(grant()).result()

    assert ledger.release("g1").result()
    assert not ledger.release("g1").result()

    assert sorted(ledger.deletable_keys(10)) == ["cache/g1/10", "cache/g1/5"]
    with pytest.raises(NotFound):
        ledger.commit(commit()).result()


def test_a_committed_grant_cannot_be_released(ledger: CacheLedger) -> None:
    entry_id = add(ledger, "g1")

    assert not ledger.release("g1").result()
    assert ledger.live_entry(entry_id) is not None


def test_grants_expire(ledger: CacheLedger, clock: SetClock) -> None:
    ledger.reserve(grant("g1", expires_at=2000.0)).result()
    ledger.reserve(grant("g2", expires_at=3000.0)).result()
    clock.wall_s = 2500.0

    assert ledger.expire_grants().result() == 1

    assert sorted(ledger.deletable_keys(10)) == ["cache/g1/10", "cache/g1/5"]
    assert ledger.totals().open_grant_count == 1


def test_an_entry_outlives_its_grant(ledger: CacheLedger, clock: SetClock) -> None:
    entry_id = add(ledger, "g1")
    clock.wall_s = 5000.0

    assert ledger.expire_grants().result() == 0
    assert ledger.live_entry(entry_id) is not None
    assert ledger.deletable_keys(10) == []


def test_keys_that_were_not_used_are_deleted(ledger: CacheLedger) -> None:
    ledger.reserve(grant(steps=(5, 10, 15))).result()
    ledger.commit(commit(steps=(10,))).result()

    assert sorted(ledger.deletable_keys(10)) == ["cache/g1/15", "cache/g1/5"]


def test_an_entry_leaves_service_at_once_and_its_objects_after_the_grace(ledger: CacheLedger, clock: SetClock) -> None:
    entry_id = add(ledger, "g1")

    assert ledger.doom([entry_id], grace_s=60).result() == 1
    assert ledger.doom([entry_id], grace_s=60).result() == 0

    assert ledger.live_entry(entry_id) is None
    assert ledger.totals().size_bytes == 0
    clock.wall_s += 61
    assert ledger.deletable_keys(10) == [], "the index may still hold the entry"
    assert ledger.doomed_ids(10) == [entry_id]
    ledger.forget_entries([entry_id]).result()
    clock.wall_s -= 61
    assert ledger.deletable_keys(10) == [], "who looked it up may still be reading"
    clock.wall_s += 61
    keys = ledger.deletable_keys(10)
    assert sorted(keys) == ["cache/g1/10", "cache/g1/5"]
    ledger.forget_objects(keys).result()
    assert ledger.known_keys(keys) == set()


def within(max_entry_count: int, max_size_bytes: int) -> WhoGivesWay:
    return lambda held: gives_way(held, CacheLimits(max_entry_count, max_size_bytes))


def test_one_tenants_flood_does_not_evict_anothers_only_entry(ledger: CacheLedger) -> None:
    (alone,) = add_for(ledger, "quiet", 1)
    flood = add_for(ledger, "loud", 26)

    assert ledger.evict(within(10, 10**9), grace_s=0).result() == 17

    assert live(ledger, [alone, *flood]) == {alone, *flood[17:]}


def test_what_a_tenant_gave_to_the_shared_pool_is_its_own(ledger: CacheLedger) -> None:
    (alone,) = add_for(ledger, "quiet", 1)
    flood = add_for(ledger, "loud", 5, pool="*shared*")

    ledger.evict(within(3, 10**9), grace_s=0).result()

    assert live(ledger, [alone, *flood]) == {alone, *flood[3:]}
    assert ledger.holdings() == {"quiet": CacheHolding(1, 20), "loud": CacheHolding(2, 40)}


def add_for(ledger: CacheLedger, tenant: str, count: int, pool: str = "") -> list[str]:
    """Entries of two objects of 10 bytes."""
    ids = []
    for number in range(count):
        name, owner = f"{tenant}{number}", {"tenant": tenant, "pool": pool or tenant}
        ledger.reserve(replace(grant(name), **owner)).result()
        ids.append(ledger.commit(replace(commit(name), **owner)).result())
    return ids


def test_the_oldest_go_first(ledger: CacheLedger) -> None:
    ids = [add(ledger, f"g{number}") for number in range(5)]

    assert ledger.evict(within(3, 10**9), grace_s=0).result() == 2

    assert live(ledger, ids) == set(ids[2:])


def test_bytes_are_a_limit_too(ledger: CacheLedger) -> None:
    ids = [add(ledger, f"g{number}", size=100) for number in range(5)]

    assert ledger.evict(within(10, 500), grace_s=0).result() == 3

    assert live(ledger, ids) == set(ids[3:])
    assert ledger.totals().size_bytes == 400


def test_many_more_than_a_batch_are_evicted(ledger: CacheLedger) -> None:
    names = [f"g{number}" for number in range(70)]
    for future in [ledger.reserve(grant(name, (5,))) for name in names]:
        future.result()
    ids = [future.result() for future in [ledger.commit(commit(name, (5,))) for name in names]]

    assert ledger.evict(within(1, 10**9), grace_s=0).result() == 69
    assert live(ledger, ids) == {ids[-1]}


def test_a_grant_ends_at_its_time_and_objects_go_at_theirs(ledger: CacheLedger, clock: SetClock) -> None:
    ledger.reserve(grant(expires_at=2000.0)).result()
    clock.wall_s = 1999.9
    early = ledger.expire_grants().result()
    clock.wall_s = 2000.0

    assert (early, ledger.expire_grants().result()) == (0, 1)
    assert len(ledger.deletable_keys(10)) == 2


def test_evicted_objects_stay_for_their_grace(ledger: CacheLedger, clock: SetClock) -> None:
    oldest, _ = add_for(ledger, "tenant", 2)
    ledger.evict(within(1, 10**9), grace_s=60).result()
    ledger.forget_entries([oldest]).result()

    early = ledger.deletable_keys(10)
    clock.wall_s += 60

    assert (early, len(ledger.deletable_keys(10))) == ([], 2)


def test_nothing_is_evicted_where_nobody_gives_way(ledger: CacheLedger) -> None:
    add_for(ledger, "tenant", 1)

    assert ledger.evict(within(10, 10**9), grace_s=0).result() == 0


@pytest.mark.parametrize(
    "take_away",
    [
        lambda ledger, entry_id: ledger.doom([entry_id], grace_s=60),
        lambda ledger, entry_id: ledger.evict(within(1, 1), grace_s=60),
        lambda ledger, entry_id: ledger.evict_items(within(1, 1), grace_s=60),
    ],
    ids=["doom", "evict", "evict_items"],
)
def test_once_an_entry_is_taken_away_what_was_read_before_is_known_to_be_old(
    ledger: CacheLedger, take_away: Callable[[CacheLedger, str], Future[int]]
) -> None:
    entry_id = add(ledger, "g1")
    before = ledger.removal_count

    take_away(ledger, entry_id).result()

    assert (before, ledger.removal_count) == (0, 1)
