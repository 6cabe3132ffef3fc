"""Test when requests use a cache that takes processor time from the workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.cache_worth import CacheWorth

COST_S = 0.02
IMAGE_S = 0.1


def noted(worth: CacheWorth, share: float, count: int, tenant: str = "a", *, found: bool = False) -> CacheWorth:
    for _ in range(count):
        worth.note(tenant, share, found=found)
    return worth


def asked(worth: CacheWorth, count: int, tenant: str = "a", noise_s: float | None = IMAGE_S) -> list[bool]:
    return [worth.asks(tenant, noise_s) for _ in range(count)]


@pytest.mark.parametrize("noise_s", [COST_S, IMAGE_S, None])
def test_cache_worth_too_few_lookups_all_ask(noise_s: float | None) -> None:
    worth = noted(CacheWorth(COST_S), 0.0, 255)

    assert all(asked(worth, 100, noise_s=noise_s))
    assert worth.why_left_out("a", noise_s) == ""


def test_cache_worth_image_cheaper_than_lookup_one_in_sixteen_asks() -> None:
    worth = CacheWorth(COST_S)

    assert asked(worth, 48, noise_s=0.019) == 3 * [*15 * [False], True]
    why = "one request in 16 asks the cache: the image takes 19.0 ms, the cache takes 20"
    assert worth.why_left_out("a", 0.019) == why


@pytest.mark.parametrize(("count", "found"), [(256, False), (16, True)], ids=["lookups", "hits"])
def test_cache_worth_saves_less_than_it_takes_one_in_sixteen_asks(count: int, found: bool) -> None:
    worth = noted(CacheWorth(COST_S), 0.19, count - 1, found=found)
    before = asked(worth, 20)
    worth.note("a", 0.19, found=found)

    assert all(before)
    assert asked(worth, 48) == 3 * [*15 * [False], True]
    why = "one request in 16 asks the cache: a lookup saves 19.0 ms, the cache takes 20"
    assert worth.why_left_out("a", IMAGE_S) == why


@pytest.mark.parametrize(
    ("misses", "share", "count", "found"),
    [(0, 0.2, 300, False), (200, 0.3, 100, False), (200, 0.9, 20, True)],
    ids=["as much as it takes", "it was empty before", "hits pay while it is nearly empty"],
)
def test_cache_worth_saves_enough_all_ask(misses: int, share: float, count: int, found: bool) -> None:
    assert all(asked(noted(noted(CacheWorth(COST_S), 0.0, misses), share, count, found=found), 100))


def test_cache_worth_same_share_of_thinned_image_does_not_pay() -> None:
    worth = noted(CacheWorth(COST_S), 0.5, 16, found=True)

    assert all(asked(worth, 100, noise_s=0.04))
    assert asked(worth, 16, noise_s=0.039) == [*15 * [False], True]


def test_cache_worth_misses_count_once_hits_are_known() -> None:
    worth = noted(CacheWorth(COST_S), 0.0, 200)
    few = noted(worth, 0.6, 15, found=True).asks("a", IMAGE_S)
    worth.note("a", 0.6, found=True)
    many = worth.asks("a", IMAGE_S)

    noted(worth, 0.0, 20)

    assert (few, many) == (True, True)
    assert asked(worth, 16) == [*15 * [False], True]


def test_cache_worth_saves_more_lately_all_ask_again() -> None:
    worth = noted(CacheWorth(COST_S), 0.0, 500)

    noted(worth, 1.0, 7)
    before = asked(worth, 15)
    noted(worth, 1.0, 1)

    assert not any(before)
    assert all(asked(worth, 100))


def test_cache_worth_counts_tenants_apart() -> None:
    worth = noted(CacheWorth(COST_S), 0.0, 300, "a")

    assert not all(asked(worth, 20, "a"))
    assert all(asked(worth, 20, "b"))


@given(st.lists(st.floats(-1.0, 1.0), max_size=400))
def test_cache_worth_without_cost_all_ask(shares: list[float]) -> None:
    worth = CacheWorth(0.0)
    for share in shares:
        worth.note("a", share)

    assert all(asked(worth, 40, noise_s=0.0))


def test_cache_worth_drops_tenant_that_asked_longest_ago() -> None:
    worth = noted(CacheWorth(COST_S), 0.0, 300, "first")
    for number in range(4095):
        worth.note(f"tenant {number}", 0.0)
    known = worth.why_left_out("first", IMAGE_S)

    worth.note("one more", 0.0)

    assert known
    assert worth.why_left_out("first", IMAGE_S) == ""
