from collections import Counter

import pytest

from pentimento.policies.credit_shares import ServedWork, credits_of

SERVED = {"a": 1.0, "b": 2.0, "c": 3.0}


@pytest.mark.parametrize(
    ("held", "awaited", "expected"),
    [
        ({}, "", 4),
        ({"a": 2}, "a", 4),
        ({"a": 5}, "a", 4),
        ({"b": 2}, "b", 2),
        ({"b": 2}, "", 2),
        ({"b": 4}, "b", 1),
        ({"a": 1, "b": 4}, "b", 2),
        ({"a": 2, "b": 4}, "b", 2),
        ({"a": 3, "b": 1}, "ab", 2),
        ({"a": 2, "b": 1}, "ab", 2),
        ({"a": 2, "b": 1}, "a", 3),
        ({"a": 1, "b": 1, "c": 1}, "abc", 2),
        ({"a": 2, "b": 1, "c": 1}, "abc", 2),
        ({"a": 4, "b": 1}, "ab", 2),
        ({"a": 1, "b": 4}, "ab", 1),
    ],
)
def test_credits_of_four_credits_by_held_attempts_gives_the_fair_count(
    held: dict[str, int], awaited: str, expected: int
) -> None:
    assert credits_of("a", 4, held, SERVED, awaited) == expected


@pytest.mark.parametrize(("work", "expected"), [({"a": 1.0, "b": 2.0}, 1), ({"a": 2.0, "b": 1.0}, 0)])
def test_credits_of_one_credit_for_two_awaited_frontdoors_alternate(work: dict[str, float], expected: int) -> None:
    assert credits_of("a", 1, {}, work, "ab") == expected


def test_draining_worker_has_no_credits() -> None:
    assert [credits_of("a", 0, held, SERVED, "") for held in ({"a": 2}, {"b": 1})] == [0, 0]


def served(credit_count: int, greedy: str, names: tuple[str, ...], steps: int) -> Counter[str]:
    """Return the steps of each frontdoor at a worker that runs its oldest `credit_count` attempts, of 5 steps each. All
    frontdoors have backlog; the greedy one always sends first."""
    running: list[tuple[str, list[int]]] = []
    work, counted = ServedWork(), Counter[str]()
    order = (greedy, *(name for name in names if name != greedy))
    for _ in range(steps):
        # Twice: a frontdoor may leave a credit to an earlier one.
        for name in order * 2:
            held = Counter(owner for owner, _ in running)
            while held[name] < credits_of(name, credit_count, held, work.work, work.work):
                running.append((name, [5]))
                work.add(name, 1.0, set(work.work))
                held[name] += 1
        for owner, left in running[:credit_count]:
            counted[owner] += 1
            left[0] -= 1
        running = [one for one in running if one[1][0]]
    return counted


@pytest.mark.parametrize("credit_count", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c"), tuple("abcdefgh")])
def test_credits_of_a_greedy_frontdoor_leave_others_their_share(credit_count: int, names: tuple[str, ...]) -> None:
    counted = served(credit_count, "a", names, 4000)
    total, squares = sum(counted.values()), sum(count**2 for count in counted.values())
    assert total >= 0.999 * 4000 * credit_count
    assert total**2 / (len(names) * squares) >= 0.99


def test_served_work_of_an_idle_frontdoor_starts_at_the_least_of_the_awaited() -> None:
    work = ServedWork()
    for name, amount, awaited in [
        ("a", 5.0, ""),
        ("b", 7.0, "a"),
        ("c", 1.0, "ab"),
        ("a", 1.0, "abc"),
        ("c", 1.0, "ab"),
    ]:
        work.add(name, amount, awaited)
    assert work.work == {"a": 6.0, "b": 12.0, "c": 7.0}
