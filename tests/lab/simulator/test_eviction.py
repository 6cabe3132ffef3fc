"""Test orders of eviction against a search through all items with their whole history."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.simulator.eviction import EvictionQueue, make_room, open_eviction
from pentimento.domain.access import AccessRecord, EvictionRule
from pentimento.policies.eviction_rules import EVICTION_NAMES, AgedBenefit, LcbfuRule, eviction_rule
from tests.support.refusals import raises

STEPS = (5, 10, 15, 20, 25)
SIZES = (1, 100, 4096)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "use", "use", "use", "remove", "pop", "restart"]),
        st.integers(0, 12),
        st.sampled_from(STEPS),
        st.sampled_from(SIZES),
    ),
    min_size=60,
    max_size=150,
)
CAPACITY = 6
AGED = AgedBenefit(CAPACITY, memory_share=1.5, density_weight=0.75, use_weight=0.5, beside_share=0.25)
RULES: dict[str, EvictionRule] = {name: eviction_rule(name, CAPACITY) for name in EVICTION_NAMES} | {"aged": AGED}


@dataclass
class History:
    """Hold the history of one item."""

    steps: int
    size: int
    added: int
    uses: list[int] = field(default_factory=list)
    # Ticks and shares of all events that count for a fading rule, the addition first.
    counted: list[tuple[int, float]] = field(default_factory=list)


def aged_score(item: History) -> float:
    """Steps a byte to the power 0.75, times the root of the faded uses, times e a tau that the last one is later."""
    last, tau = item.counted[-1][0], 1.5 * CAPACITY
    faded = sum(share * math.exp(-(last - tick) / tau) for tick, share in item.counted)
    return 0.75 * math.log(item.steps / item.size) + 0.5 * math.log(faded) + last / tau


SCORES: dict[str, Callable[[History], tuple[float, ...]]] = {
    "fifo": lambda item: (item.added,),
    "lru": lambda item: (item.uses[-1] if item.uses else item.added,),
    "lfu": lambda item: (len(item.uses), item.uses[-1] if item.uses else item.added),
    "lcbfu": lambda item: ((1 + len(item.uses)) * item.steps, item.added),
    "aged": lambda item: (aged_score(item), item.added),
}


def beside(item: int) -> list[int]:
    """Items 0 to 2 are one entry's, 3 to 5 the next one's."""
    return [other for other in range(item - item % 3, item - item % 3 + 3) if other != item]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(OPERATIONS)
def test_every_rule_agrees_with_a_search_through_all_items(operations: list[tuple[str, int, int, int]]) -> None:
    """The same history under each: to draw one costs more than to play it."""
    for name in EVICTION_NAMES:
        agree_on(name, operations)


def agree_on(name: str, operations: list[tuple[str, int, int, int]]) -> None:
    queue, known, tick = EvictionQueue(RULES[name]), dict[int, History](), 0
    for operation, item, steps, size in operations:
        if operation == "add":
            tick += 1
            queue.add(item, steps, size)
            known[item] = History(steps, size, tick, counted=[(tick, 1.0)])
        elif operation == "use":
            queue.use(item, [item, *beside(item)])
            if item in known:
                tick += 1
                known[item].uses.append(tick)
                known[item].counted.append((tick, 1.0))
                for other in beside(item):
                    if other in known:
                        known[other].counted.append((tick, 0.25))
        elif operation == "remove":
            queue.remove(item)
            known.pop(item, None)
        elif operation == "restart":
            queue, tick = restarted(queue, RULES[name], list(known)), last_tick(known, name)
        elif known:
            lowest = min(known, key=lambda each: SCORES[name](known[each]))
            assert queue.pop() == lowest
            del known[lowest]
        assert len(queue) == len(known)
    assert drained(queue) == sorted(known, key=lambda each: SCORES[name](known[each]))


def restarted(queue: EvictionQueue, rule: EvictionRule, items: list[int]) -> EvictionQueue:
    """Return another queue with only the access records."""
    fresh = EvictionQueue(rule)
    for item in reversed(items):
        fresh.restore(item, queue.record(item))
    return fresh


def last_tick(known: dict[int, History], name: str) -> int:
    """Return the latest tick in any record. Only a fading rule records ticks without a use."""
    if name == "aged":
        return max((item.counted[-1][0] for item in known.values()), default=0)
    return max((max([item.added, *item.uses]) for item in known.values()), default=0)


def drained(queue: EvictionQueue) -> list[Hashable]:
    return [queue.pop() for _ in range(len(queue))]


def test_the_papers_example_keeps_the_deep_latent() -> None:
    """100 uses at K = 25 against 200 at K = 5 (NIRVANA, section 5.4)."""
    queue = EvictionQueue(LcbfuRule(first_frequency=0.0))
    for item, steps, count in (("i", 25, 100), ("j", 5, 200)):
        queue.add(item, steps)
        for _ in range(count):
            queue.use(item)

    assert drained(queue) == ["j", "i"]


@pytest.mark.parametrize(("name", "is_kept"), [("lcbfu", True), ("lfu", True), ("aged", False), ("lru", False)])
def test_uses_of_long_ago_are_forgotten_where_they_fade(name: str, is_kept: bool) -> None:
    """Fifty uses, then two hundred other items through a cache of ten."""
    queue = open_eviction(name, 10)
    queue.add("once popular", 25)
    for _ in range(50):
        queue.use("once popular")
    for item in range(200):
        make_room(queue, 1, 10)
        queue.add(item, 25)

    assert ("once popular" in drained(queue)) is is_kept


def test_early_uses_count_less_than_late_ones_even_where_both_were_used_last() -> None:
    queue = open_eviction("aged", 10)
    for item in ("early", "late"):
        queue.add(item, 25)
    for _ in range(8):
        queue.use("early")
    for item in range(150):
        queue.add(item, 25)
    for item in ("late", "late", "late", "early"):
        queue.use(item)

    assert drained(queue)[-2:] == ["early", "late"]


@pytest.mark.parametrize(("hits_add", "first"), [(False, "shallow"), (True, "deep")])
def test_deep_latents_are_kept_where_misses_alone_add(hits_add: bool, first: str) -> None:
    queue = open_eviction("aged", 10, hits_add=hits_add)
    queue.add("deep", 25)
    queue.add("shallow", 5)

    assert queue.pop() == first


def test_aged_benefit_lets_the_larger_of_two_alike_go() -> None:
    queue = open_eviction("aged", 10_000)
    queue.add("small", 20, 1_000)
    queue.add("large", 20, 4_000)

    assert drained(queue) == ["large", "small"]


def test_where_all_add_an_item_lives_on_when_another_of_its_entry_is_used() -> None:
    queue = open_eviction("aged", 10, hits_add=True)
    for item in ("a5", "b5", "b10"):
        queue.add(item, 5)
    queue.use("b10", beside=["b5"])
    queue.add("c5", 5)
    queue.use("a5")

    assert queue.record("b5").faded_uses > 1.0
    assert queue.record("b5").use_count == 0


def test_nothing_to_evict_is_a_key_error() -> None:
    assert all(raises(KeyError, open_eviction(name, CAPACITY).pop) for name in EVICTION_NAMES)


@pytest.mark.parametrize("name", EVICTION_NAMES)
def test_removed_item_is_forgotten_and_returns_as_new(name: str) -> None:
    queue = open_eviction(name, CAPACITY)
    for item in ("a", "b", "c", "a"):
        queue.add(item, 5)
    queue.remove("b")
    queue.remove("nobody")
    queue.use("nobody", beside=["a"])

    assert len(queue) == 2
    assert queue.record("a") == AccessRecord(5, 1, added_tick=4, used_tick=4)
    assert drained(queue) == ["c", "a"]


def test_a_queue_keeps_its_order_and_its_memory_through_many_uses() -> None:
    """There are at most as many void entries as live ones, plus 64."""
    queue, sizes = open_eviction("lcbfu", CAPACITY), set()
    queue.add("busy", 5)
    queue.add("idle", 5)
    for _ in range(1000):
        queue.use("busy")
        sizes.add(len(queue._heap))

    assert max(sizes) == 2 * 2 + 64
    assert drained(queue) == ["idle", "busy"]


def test_queue_forgets_removed_items() -> None:
    queue = open_eviction("lcbfu", CAPACITY)
    for item in range(100):
        queue.add(item, 5)
    for item in range(100):
        queue.remove(item)

    assert len(queue._heap) <= 64


def test_fifo_pushes_nothing_when_an_item_is_used() -> None:
    queue = open_eviction("fifo", CAPACITY)
    queue.add("a", 5)
    for _ in range(10):
        queue.use("a")

    assert len(queue._heap) == 1


@pytest.mark.parametrize(("rule", "first"), [(LcbfuRule(), "once"), (LcbfuRule(first_frequency=3.0), "often")])
def test_how_much_an_item_counts_before_its_first_use_may_be_set(rule: LcbfuRule, first: str) -> None:
    """10 against 4 + 12 where an item counts once at first, 30 against 12 + 12 where it counts three times."""
    queue = EvictionQueue(rule)
    queue.add("once", 10)
    queue.add("often", 4)
    for _ in range(3):
        queue.use("often")

    assert queue.pop() == first


def test_eviction_precedes_insertion() -> None:
    """In a cache of five."""
    for held, new, gone in ((3, 2, []), (4, 2, [0]), (5, 5, [0, 1, 2, 3, 4]), (2, 9, [0, 1]), (0, 9, [])):
        queue = open_eviction("fifo", CAPACITY)
        for item in range(held):
            queue.add(item, 5)

        assert make_room(queue, new, 5) == gone, (held, new)


def test_an_unknown_rule_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="fifo, lru, lfu, lcbfu, aged, got 'random'"):
        eviction_rule("random", 10)


@pytest.mark.parametrize(("capacity", "share"), [(0, 1.0), (1, 0.0), (1, -1.0)])
def test_a_memory_of_no_length_is_refused(capacity: int, share: float) -> None:
    with pytest.raises(ValueError, match="capacity_count must be"):
        AgedBenefit(capacity, memory_share=share)
