"""Test access records and evictions of single items in the cache's ledger, on SQLite and on PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random

import pytest
from sqlalchemy import text

from lab.fixtures.clocks import SetClock
from lab.simulator.eviction import EvictionQueue, make_room
from pentimento.domain.access import EvictionRule
from pentimento.policies.cache_quota import CacheLimits, gives_way
from pentimento.policies.eviction_rules import EVICTION_NAMES, LcbfuRule, LruRule, eviction_rule
from pentimento.stores.ledger.cache import evictions as cache_evictions
from pentimento.stores.ledger.cache.ledger import CacheLedger, open_cache_ledger
from tests.contract.stores.cache_records import SIZE, STEPS, add, down_to, steps_of, uses
from tests.support.watched_statements import watched_statements


def test_evict_ranks_entry_by_its_last_item(ledger: CacheLedger) -> None:
    ledger.follow(LruRule()).result()
    ids = [add(ledger, name) for name in "abc"]
    ledger.note_uses(uses(1, "a/10")).result()

    assert ledger.evict(lambda held: gives_way(held, CacheLimits(1, 10**9)), grace_s=0).result() == 2

    assert [bool(steps_of(ledger, entry)) for entry in ids] == [True, False, False]


def test_evict_items_image_saves_all_steps(ledger: CacheLedger) -> None:
    ledger.follow(LcbfuRule()).result()
    entry_id = add(ledger, "a", image=True)

    ledger.evict_items(down_to(1), grace_s=0).result()

    entry = ledger.live_entry(entry_id)
    assert entry is not None
    assert (entry.latents, entry.image is not None) == ((), True)


@pytest.mark.parametrize("of_items", [True, False])
def test_evict_reads_in_batches(ledger: CacheLedger, monkeypatch: pytest.MonkeyPatch, of_items: bool) -> None:
    """Evict 69 of 70 entries with one item each: reads of 8, 32 and 128, then two batches, of at most ten statements
    each."""
    # Choose all in one part, even on a slow machine.
    monkeypatch.setattr(cache_evictions, "_CHOOSING_S", 60.0)
    for number in range(70):
        add(ledger, f"g{number}", steps=(5,))
    made = list[str]()

    with watched_statements(lambda cursor, text, parameters: text.startswith("BEGIN") or made.append(text)):
        evicted = ledger.evict_items if of_items else ledger.evict
        assert evicted(down_to(1), grace_s=0).result() == 69

    assert len(made) < 26


def test_note_uses_survives_restart(ledger_url: str) -> None:
    before = open_cache_ledger(ledger_url)
    before.follow(LruRule()).result()
    first, second = add(before, "a"), add(before, "b")
    before.note_uses(uses(1, "a/5", "a/10", "a/15")).result()
    before.close()

    after = open_cache_ledger(ledger_url)
    assert after.follow(LruRule()).result() == 0
    after.evict_items(down_to(3), grace_s=0).result()

    assert (steps_of(after, first), steps_of(after, second)) == (list(STEPS), [])
    after.close()


def test_follow_other_rule_ranks_by_records(ledger: CacheLedger) -> None:
    first, second = add(ledger, "a"), add(ledger, "b")
    ledger.note_uses(uses(1, "a/5", "a/10", "a/15")).result()

    assert ledger.follow(LruRule()).result() == 6
    assert ledger.follow(LruRule()).result() == 0
    ledger.evict_items(down_to(3), grace_s=0).result()

    assert (steps_of(ledger, first), steps_of(ledger, second)) == (list(STEPS), [])


def test_note_uses_of_repeated_batch_counts_once(ledger: CacheLedger) -> None:
    add(ledger, "a")

    counted = [ledger.note_uses(uses(number, "a/5", "a/5", "gone")).result() for number in (1, 1, 2, 1)]

    assert counted == [2, 0, 2, 0]
    assert use_counts(ledger) == {"a/5": 4, "a/10": 0, "a/15": 0}


def test_note_uses_remembers_source_for_a_day(ledger_url: str) -> None:
    clock, counted = SetClock(), list[int]()
    with closing(open_cache_ledger(ledger_url, clock)) as ledger:
        add(ledger, "a")
        for seconds in (0.0, 86_400.0, 0.5):
            clock.wall_s += seconds
            counted.append(ledger.note_uses(uses(1, "a/5")).result())

    assert counted == [1, 0, 1]


def test_mark_indexed_takes_no_tick(ledger: CacheLedger) -> None:
    """Uses lose weight with the ticks that have passed."""
    add(ledger, "a")
    before = last_tick(ledger)

    ledger.mark_indexed(ledger.unindexed(10)).result()

    assert last_tick(ledger) == before


def last_tick(ledger: CacheLedger) -> int:
    with ledger._engine.connect() as connection:
        return int(connection.execute(text("SELECT tick FROM cache_state")).scalar_one())


def use_counts(ledger: CacheLedger) -> dict[str, int]:
    with ledger._engine.connect() as connection:
        rows = connection.execute(text("SELECT key, use_count FROM cache_objects WHERE entry_id IS NOT NULL"))
        return {row.key: row.use_count for row in rows}


def test_note_uses_of_several_gateways_counts_each_once(ledger_url: str) -> None:
    gateways = [open_cache_ledger(ledger_url) for _ in range(3)]
    for gateway in gateways:
        gateway.follow(LcbfuRule()).result()
    add(gateways[0], "a")

    def play(number: int) -> None:
        for batch in range(1, 9):
            gateways[number].note_uses(uses(batch, "a/5", "a/10", source=f"gateway-{number}")).result()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(play, range(3)))

    assert use_counts(gateways[0]) == {"a/5": 24, "a/10": 24, "a/15": 0}
    for gateway in gateways:
        gateway.close()


def test_evict_items_by_several_gateways_takes_each_once(ledger_url: str) -> None:
    gateways = [open_cache_ledger(ledger_url) for _ in range(3)]
    for number in range(16):
        add(gateways[number % 3], f"g{number}")

    with ThreadPoolExecutor(3) as threads:
        gone = list(threads.map(lambda gateway: gateway.evict_items(down_to(8), grace_s=0).result(), gateways))

    assert sum(gone) == 40
    assert gateways[0].totals().object_count == 8
    assert gateways[0].check_integrity() == []
    for gateway in gateways:
        gateway.close()


@pytest.mark.parametrize("name", EVICTION_NAMES)
def test_evict_items_equals_order_in_memory(ledger: CacheLedger, name: str) -> None:
    """Add, use and evict at random under each rule; many items have equal sizes."""
    rule, random, number = eviction_rule(name, 12, hits_add=name == "aged"), Random(7), 0
    queue = EvictionQueue(rule)
    ledger.follow(rule).result()
    for turn in range(36):
        if turn % 3 == 0:
            add(ledger, f"g{turn}")
            for step in STEPS:
                queue.add(f"g{turn}/{step}", step, SIZE)
        elif turn % 3 == 1:
            number += 1
            key = random.choice(sorted(held(ledger)))
            ledger.note_uses(uses(number, key)).result()
            queue.use(key, [other for other in held(ledger) if other.split("/")[0] == key.split("/")[0]])
        else:
            ledger.evict_items(down_to(12), grace_s=0).result()
            while len(queue) > 12:
                queue.pop()
            assert held(ledger) == {str(item) for item in queue.items()}


@pytest.mark.parametrize("name", EVICTION_NAMES)
def test_evict_items_after_insertion_equals_room_before_it(ledger: CacheLedger, name: str) -> None:
    """Keep a full cache of twelve items, with random uses: a new item stays, and the evictions equal those before an
    insertion."""
    rule, random = eviction_rule(name, 12), Random(5)
    queue, new_after = EvictionQueue(rule), None
    ledger.follow(rule).result()
    for turn in range(12):
        for item in make_room(queue, len(STEPS), 12):
            assert not str(item).startswith(f"g{turn}/")
        add(ledger, f"g{turn}")
        for step in STEPS:
            queue.add(f"g{turn}/{step}", step, SIZE)

        newest = ledger.newest_number()
        ledger.evict_items(down_to(12), 0, new_after).result()
        new_after = newest

        assert held(ledger) == {str(item) for item in queue.items()}
        key = random.choice(sorted(held(ledger)))
        ledger.note_uses(uses(turn + 1, key)).result()
        queue.use(key, [other for other in held(ledger) if other.split("/")[0] == key.split("/")[0]])


@pytest.mark.parametrize("of_items", [True, False])
def test_evict_takes_new_entries_last(ledger: CacheLedger, of_items: bool) -> None:
    ledger.follow(LcbfuRule()).result()
    add(ledger, "old", steps=(25,))
    new_after = ledger.newest_number()
    ids = [add(ledger, name, steps=(step,)) for name, step in (("low", 5), ("high", 10))]

    evicted = ledger.evict_items if of_items else ledger.evict
    assert evicted(down_to(1), 0, new_after).result() == 2

    assert [steps_of(ledger, entry) for entry in ids] == [[], [10]]


def held(ledger: CacheLedger) -> set[str]:
    return set(use_counts(ledger))


def _rules() -> list[EvictionRule]:
    return [eviction_rule(name, 100) for name in EVICTION_NAMES]


def test_eviction_rules_repr_is_unique() -> None:
    """The ledger names the rule of its stored ranks by this text."""
    assert len({repr(rule) for rule in [*_rules(), eviction_rule("aged", 101)]}) == len(_rules()) + 1
    assert not any(" at 0x" in repr(rule) for rule in _rules())
