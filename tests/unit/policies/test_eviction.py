import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.policies.eviction import EVICTIONS, Fifo, Lcbfu

STEPS = (5, 10, 15, 20, 25)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "use", "remove", "pop"]), st.integers(0, 12), st.sampled_from(STEPS)),
    max_size=200,
)


def test_fifo_lets_the_oldest_go_however_much_it_was_used() -> None:
    rule = Fifo()
    for item in "abc":
        rule.add(item, 5)
    rule.use("a")

    assert [rule.pop(), rule.pop(), rule.pop()] == ["a", "b", "c"]


def test_lcbfu_lets_go_what_saves_least() -> None:
    rule = Lcbfu()
    rule.add("often", 5)
    rule.add("deep", 25)
    rule.add("shallow", 10)
    for _ in range(3):
        rule.use("often")

    assert [rule.pop(), rule.pop(), rule.pop()] == ["shallow", "often", "deep"]


@pytest.mark.parametrize("name", EVICTIONS)
def test_nothing_to_evict_is_a_key_error(name: str) -> None:
    with pytest.raises(KeyError):
        EVICTIONS[name]().pop()


@settings(deadline=None, max_examples=50)
@given(OPERATIONS)
def test_lcbfu_agrees_with_a_search_through_all_items(operations: list[tuple[str, int, int]]) -> None:
    rule, scores = Lcbfu(), dict[int, list[float]]()
    for number, (operation, item, steps) in enumerate(operations):
        if operation == "add":
            rule.add(item, steps)
            scores[item] = [float(steps), number, steps]
        elif operation == "use" and item in scores:
            rule.use(item)
            scores[item][0] += scores[item][2]
        elif operation == "remove":
            rule.remove(item)
            scores.pop(item, None)
        elif operation == "pop" and scores:
            lowest = min(scores, key=lambda known: scores[known][:2])
            assert rule.pop() == lowest
            del scores[lowest]
        assert len(rule) == len(scores)


def test_fifo_forgets_what_is_gone_and_takes_what_came_again_for_new() -> None:
    rule = Fifo()
    for item in ("a", "b", "c", "a"):
        rule.add(item, 5)
    rule.remove("b")
    rule.remove("nobody")

    assert len(rule) == 2
    assert [rule.pop(), rule.pop()] == ["c", "a"]


def test_lcbfu_keeps_its_order_and_its_memory_through_many_uses() -> None:
    """Void entries are at most as many as the live ones, and 64."""
    rule, sizes = Lcbfu(), set()
    rule.add("busy", 5)
    rule.add("idle", 5)
    for _ in range(1000):
        rule.use("busy")
        sizes.add(len(rule._heap))

    assert max(sizes) == 2 * 2 + 64
    assert [rule.pop(), rule.pop()] == ["idle", "busy"]


def test_lcbfu_forgets_what_was_removed() -> None:
    rule = Lcbfu()
    for item in range(100):
        rule.add(item, 5)
    for item in range(100):
        rule.remove(item)

    assert len(rule._heap) <= 64


@pytest.mark.parametrize(("rule", "first"), [(Lcbfu(), "once"), (Lcbfu(first_frequency=3.0), "often")])
def test_how_much_an_item_counts_before_its_first_use_may_be_set(rule: Lcbfu, first: str) -> None:
    """10 against 4 + 12 where an item counts once at first, 30 against 12 + 12 where it counts three times."""
    rule.add("once", 10)
    rule.add("often", 4)
    for _ in range(3):
        rule.use("often")

    assert rule.pop() == first
