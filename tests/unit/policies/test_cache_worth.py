"""A cache whose hits spare less than it takes is asked for one request in sixteen, until they spare more."""

from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.cache_worth import CacheWorth


def noted(worth: CacheWorth, spared_s: float, count: int, tenant: str = "a") -> CacheWorth:
    for _ in range(count):
        worth.note(tenant, spared_s)
    return worth


def asked(worth: CacheWorth, count: int, tenant: str = "a") -> list[bool]:
    return [worth.asks(tenant) for _ in range(count)]


def test_all_ask_until_enough_lookups_have_told() -> None:
    worth = noted(CacheWorth(0.02), 0.0, 255)

    assert all(asked(worth, 100))
    assert worth.why_left_out("a") == ""


def test_one_in_sixteen_asks_where_hits_spare_less_than_the_cache_takes() -> None:
    worth = noted(CacheWorth(0.02), 0.019, 256)

    assert asked(worth, 48) == 3 * [*15 * [False], True]
    assert worth.why_left_out("a") == "one request in 16 asks the cache: a lookup spares 19.0 ms and takes 20"


def test_all_ask_where_hits_spare_as_much_as_it_takes() -> None:
    assert all(asked(noted(CacheWorth(0.02), 0.02, 300), 100))


def test_what_spares_more_lately_is_asked_by_all_again() -> None:
    worth = noted(CacheWorth(0.02), 0.0, 500)

    noted(worth, 0.1, 14)
    before = asked(worth, 15)
    noted(worth, 0.1, 2)

    assert not any(before)
    assert all(asked(worth, 100))


def test_few_hits_that_spare_too_little_decide_it() -> None:
    worth = CacheWorth(0.02)
    for _ in range(15):
        worth.note("a", 0.01, found=True)
    before = asked(worth, 20)
    worth.note("a", 0.01, found=True)

    assert all(before)
    assert asked(worth, 16) == [*15 * [False], True]
    assert worth.why_left_out("a") == "one request in 16 asks the cache: a hit spares 10.0 ms and takes 20"


def test_hits_that_pay_are_asked_for_while_the_cache_is_nearly_empty() -> None:
    worth = noted(CacheWorth(0.02), 0.0, 200)
    for _ in range(20):
        worth.note("a", 0.3, found=True)

    assert all(asked(worth, 100))


def test_a_cache_that_is_filled_is_judged_by_what_it_spares_now() -> None:
    worth = noted(CacheWorth(0.02), 0.0, 200)

    noted(worth, 0.03, 100)

    assert all(asked(worth, 100))


def test_a_tenants_lookups_tell_nothing_of_anothers() -> None:
    worth = noted(CacheWorth(0.02), 0.0, 300, "a")

    assert not all(asked(worth, 20, "a"))
    assert all(asked(worth, 20, "b"))


@given(st.lists(st.floats(-1.0, 1.0), max_size=400))
def test_a_cache_that_takes_nothing_is_always_asked(spared: list[float]) -> None:
    worth = CacheWorth(0.0)
    for seconds in spared:
        worth.note("a", seconds)

    assert all(asked(worth, 40))


def test_tenants_that_asked_longest_ago_are_forgotten_beyond_a_bound() -> None:
    worth = noted(CacheWorth(0.02), 0.0, 300, "first")
    for number in range(4095):
        worth.note(f"tenant {number}", 0.0)
    known = worth.why_left_out("first")

    worth.note("one more", 0.0)

    assert known
    assert worth.why_left_out("first") == ""
