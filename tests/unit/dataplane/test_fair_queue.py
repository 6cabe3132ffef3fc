import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.dataplane.fair_queue import FairQueue

works = st.floats(0.1, 1000.0)


def any_request(request_id: str) -> bool:
    return True


def serve(queue: FairQueue, may_go: Callable[[str], bool] = any_request) -> str:
    request_id = queue.first_of(may_go)
    assert request_id is not None
    queue.serve(request_id)
    return request_id


def test_requests_of_a_tenant_go_by_due_time_then_arrival() -> None:
    queue = FairQueue()
    assert queue.first_of(any_request) is None
    for request_id, due in (("late", 9.0), ("soon", 1.0), ("then", 5.0), ("as soon", 1.0)):
        queue.push(request_id, "t", due, 1.0)

    assert [serve(queue) for _ in range(4)] == ["soon", "as soon", "then", "late"]


def test_one_huge_request_does_not_make_turns_long_for_ever() -> None:
    queue = FairQueue()
    queue.push("huge", "a", 0.0, 1e9)
    serve(queue)
    for number in range(50):
        queue.push(f"a{number}", "a", 0.0, 1.0)
        queue.push(f"b{number}", "b", 0.0, 1.0)

    served = [serve(queue)[0] for _ in range(20)]

    assert abs(served.count("a") - served.count("b")) <= 3


def test_tenant_with_blocked_first_request_is_skipped() -> None:
    queue = FairQueue()
    queue.push("held up", "a", 0.0, 1.0)
    queue.push("free", "b", 0.0, 100.0)

    assert queue.first_of(lambda name: name == "free") == "free"
    assert queue.first_of(lambda name: False) is None


def test_unused_turns_are_not_saved_up() -> None:
    queue = FairQueue()
    for number in range(100):
        queue.push(f"a{number}", "a", 0.0, 1.0)
        queue.push(f"b{number}", "b", 0.0, 1.0)
    for _ in range(40):
        serve(queue, lambda name: name.startswith("b"))

    served = [serve(queue)[0] for _ in range(20)]

    assert abs(served.count("a") - served.count("b")) <= 3


def test_rest_of_interrupted_turns_is_not_saved_up() -> None:
    queue = FairQueue()
    for number in range(200):
        queue.push(f"a{number}", "a", 0.0, 1.0)
        queue.push(f"b{number}", "b", 0.0, 9.0)
    for _ in range(20):
        # One of a's, which ends its turn early.
        serve(queue, lambda name: name.startswith("a"))
        serve(queue, lambda name: name.startswith("b"))

    assert "b" in [serve(queue)[0] for _ in range(15)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), works, st.floats(0, 10), st.integers(0, 3)), max_size=60))
def test_everything_is_served_once_whatever_leaves_meanwhile(
    requests: list[tuple[str, float, float, int]],
) -> None:
    queue, waiting = FairQueue(), dict[str, tuple[str, float]]()
    for number, (tenant, work, due, action) in enumerate(requests):
        queue.push(f"r{number}", tenant, due, work)
        waiting[f"r{number}"] = (tenant, due)
        if action == 0:
            waiting.pop(serve(queue))
        elif action == 1:
            left = next(iter(waiting))
            queue.discard(left)
            del waiting[left]

    while queue:
        tenant, due = waiting.pop(serve(queue))
        assert all(due <= other for name, other in waiting.values() if name == tenant)
    assert not waiting


@settings(max_examples=60, deadline=None)
@given(st.lists(works, min_size=1, max_size=30), st.lists(works, min_size=1, max_size=30), st.integers(2, 4))
def test_backlogged_tenants_are_served_equally(mine: list[float], theirs: list[float], tenant_count: int) -> None:
    """The bound of deficit round robin, after every single service: a quantum and two of the largest requests."""
    queue, served = FairQueue(), dict.fromkeys(range(tenant_count), 0.0)
    sizes = {tenant: itertools.cycle(mine if tenant % 2 else theirs) for tenant in served}
    work_of: dict[str, tuple[int, float]] = {}
    names = itertools.count()

    def push(tenant: int) -> None:
        name, work = f"r{next(names)}", next(sizes[tenant])
        work_of[name] = (tenant, work)
        queue.push(name, str(tenant), 0.0, work)

    for tenant in served:
        push(tenant)
        push(tenant)
    for _ in range(150):
        tenant, work = work_of[serve(queue)]
        served[tenant] += work
        push(tenant)
        assert max(served.values()) - min(served.values()) <= 3 * max(*mine, *theirs) + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.lists(works, min_size=1, max_size=30), st.sampled_from([0.05, 0.5, 2.0, 20.0]))
def test_tenants_are_served_by_their_weights(sizes: list[float], weight: float) -> None:
    """Shares of work follow the weights, to within a round of each and the saved deficit: two of the largest
    requests."""
    queue, served = FairQueue({"a": weight}), {"a": 0.0, "b": 0.0}
    cycle, names = itertools.cycle(sizes), itertools.count()
    work_of: dict[str, tuple[str, float]] = {}

    def push(tenant: str) -> None:
        name, work = f"{tenant}{next(names)}", next(cycle)
        work_of[name] = (tenant, work)
        queue.push(name, tenant, 0.0, work)

    for tenant in "aabb":
        push(tenant)
    for _ in range(150):
        tenant, work = work_of[serve(queue)]
        served[tenant] += work
        push(tenant)
        assert abs(served["a"] / weight - served["b"]) <= 3 * max(sizes) * max(1.0, 1.0 / weight) + 1e-6


def test_memory_does_not_grow_with_removed_requests() -> None:
    """The queue keeps at most as many removed entries as waiting ones, plus 64."""
    queue, sizes = FairQueue(), set()
    queue.push("stays", "t", 0.0, 1.0)
    for number in range(1000):
        queue.push(f"r{number}", "t", 1.0, 1.0)
        queue.discard(f"r{number}")
        sizes.add(len(queue._backlogs["t"].heap))

    assert max(sizes) == 2 * 1 + 64


def test_remaining_requests_keep_order_and_are_served_once() -> None:
    """Requests that came earlier are due later, so that a swept heap has to be made a heap again."""
    queue = FairQueue()
    for number in range(200):
        queue.push(f"r{number}", "t", -float(number), 1.0)
        queue.push(f"r{number}", "t", -float(number), 1.0)
    for number in range(10, 200):
        queue.discard(f"r{number}")

    assert len(queue) == 10
    assert [serve(queue) for _ in range(10)] == [f"r{number}" for number in range(9, -1, -1)]


def test_quantum_is_mean_work_at_start_of_round() -> None:
    """Works of 4 and 1 in turn, a quantum of 2: the large tenant saves up for two rounds, the small one is served two
    a round."""
    queue = FairQueue()
    for number in range(2):
        queue.push(f"L{number}", "large", 0.0, 4.0)
    for number in range(4):
        queue.push(f"s{number}", "small", 0.0, 1.0)

    assert [serve(queue)[0] for _ in range(6)] == ["s", "s", "L", "s", "s", "L"]


@pytest.mark.parametrize(("near", "far", "small"), [(1.0, 2.0, 0.01), (6.0, 7.0, 0.5)])
def test_request_that_needs_fewer_rounds_goes_first(near: float, far: float, small: float) -> None:
    """Many rounds are given together, but no more than the nearest request needs: one too many would serve `far`."""
    queue = FairQueue()
    queue.push("near", "a", 0.0, near)
    queue.push("far", "b", 0.0, far)
    for number in range(11 if small == 0.5 else 30):
        for tenant in "ab":
            queue.push(f"{tenant}{number}", tenant, 1.0, small)

    assert serve(queue) == "near"


def test_request_is_served_after_much_larger_one_rounded_its_work_away() -> None:
    """1e16 and 1 make 1e16: without the large one that is nothing."""
    queue = FairQueue()
    queue.push("large", "a", 1.0, 1e16)
    queue.push("small", "b", 2.0, 1.0)

    queue.discard("large")

    assert queue.first_of(any_request) == "small"
