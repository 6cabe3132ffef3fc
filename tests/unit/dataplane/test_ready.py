import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.dataplane.ready import ReadyWorkers


def test_no_worker_is_first_of_none() -> None:
    ready = ReadyWorkers()
    ready.set("a", 1.0)
    ready.discard("a")

    assert not ready
    with pytest.raises(IndexError):
        ready.first()


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 3)), max_size=300))
def test_order_after_any_changes_equals_sorted_workers(changes: list[tuple[str, int | None]]) -> None:
    ready, costs = ReadyWorkers(), dict[str, int]()
    for worker_id, cost in changes:
        if cost is None:
            ready.discard(worker_id)
            costs.pop(worker_id, None)
        elif costs.get(worker_id) != cost:
            ready.set(worker_id, cost)
            costs.pop(worker_id, None)
            costs[worker_id] = cost

    # `sorted` keeps the order of equals, which is that of their last change.
    assert list(ready) == sorted(costs, key=costs.__getitem__)
    assert not costs or ready.first() == next(iter(ready))
    assert len(ready._heap) <= 2 * len(costs) + 65


def test_many_changes_of_one_leave_the_others_where_they_were() -> None:
    ready = ReadyWorkers()
    ready.set("b", 0.0)
    sizes = set()
    for cost in range(1000, 0, -1):
        ready.set("a", float(cost))
        sizes.add(len(ready._heap))

    assert list(ready) == ["b", "a"]
    assert ready.first() == "b"
    assert max(sizes) == 2 * 2 + 64


def test_a_swept_heap_is_one_again() -> None:
    ready = ReadyWorkers()
    for worker_id, cost in (("a", 5.0), ("b", 1.0)):
        ready.set(worker_id, cost)
    for cost in range(67, 0, -1):
        ready.set("a", 4.0 + cost)

    assert len(ready._heap) == 2
    assert ready.first() == "b"


def test_a_worker_of_the_same_cost_as_before_keeps_its_place() -> None:
    ready = ReadyWorkers()
    for worker_id in ("a", "b", "a"):
        ready.set(worker_id, 1.0)

    assert list(ready) == ["a", "b"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.integers(0, 2)), min_size=1), st.integers(1, 4))
def test_cheapest_are_workers_of_lowest_cost_in_order(changes: list[tuple[str, int | None]], most: int) -> None:
    ready = ReadyWorkers()
    for name, cost in changes:
        ready.discard(name) if cost is None else ready.set(name, cost)
    if not len(ready):
        return
    costs, order = ready.costs(), list(ready)

    expected = [name for name in order if costs[name][0] == costs[order[0]][0]]

    assert list(ready.cheapest(most)) == expected[:most]
    assert (list(ready), ready.first()) == (order, order[0])
