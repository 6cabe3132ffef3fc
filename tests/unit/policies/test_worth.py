"""Test when requests use a cache that takes processor time from the workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.worth import Worth

COST_S = 0.02
IMAGE_S = 0.1


def noted(worth: Worth, share: float, count: int, tenant: str = "a") -> Worth:
    for _ in range(count):
        worth.note(tenant, share)
    return worth


def asked(worth: Worth, count: int, tenant: str = "a", noise_s: float | None = IMAGE_S) -> list[bool]:
    return [worth.asks(tenant, noise_s) for _ in range(count)]


def test_cache_worth_until_lookups_took_eight_images_all_ask() -> None:
    worth = noted(Worth(COST_S), 0.0, 39)
    before = asked(worth, 20)
    why_before = worth.why_left_out("a", IMAGE_S)
    worth.note("a", 0.0)

    assert all(before)
    assert why_before == ""
    assert asked(worth, 48) == 3 * [*15 * [False], True]
    assert (
        worth.why_left_out("a", IMAGE_S)
        == "one request in 16 asks the cache: a lookup saves 0.0 ms, the cache takes 20"
    )


@pytest.mark.parametrize("noise_s", [0.101, None], ids=["longer image", "unknown"])
def test_cache_worth_fills_longer_for_longer_images(noise_s: float | None) -> None:
    worth = noted(Worth(COST_S), 0.0, 40)

    assert all(asked(worth, 100, noise_s=noise_s))


def test_cache_worth_image_cheaper_than_lookup_one_in_sixteen_asks() -> None:
    worth = Worth(COST_S)

    assert asked(worth, 48, noise_s=0.019) == 3 * [*15 * [False], True]
    why = "one request in 16 asks the cache: the image takes 19.0 ms, the cache takes 20"
    assert worth.why_left_out("a", 0.019) == why


@pytest.mark.parametrize(("share", "asks"), [(0.19, False), (0.2, True)], ids=["less than it takes", "as much"])
def test_cache_worth_compares_saved_seconds_with_cost(share: float, asks: bool) -> None:
    worth = noted(Worth(COST_S), share, 40)

    assert asked(worth, 15) == 15 * [asks]


def test_cache_worth_same_share_of_thinned_image_does_not_pay() -> None:
    worth = noted(Worth(COST_S), 0.5, 40)

    assert all(asked(worth, 100, noise_s=0.04))
    assert asked(worth, 16, noise_s=0.039) == [*15 * [False], True]


def test_cache_worth_saves_more_lately_all_ask_again() -> None:
    worth = noted(Worth(COST_S), 0.0, 500)

    noted(worth, 1.0, 7)
    before = asked(worth, 15)
    noted(worth, 1.0, 1)

    assert not any(before)
    assert all(asked(worth, 100))


def test_cache_worth_counts_tenants_apart() -> None:
    worth = noted(Worth(COST_S), 0.0, 300, "a")

    assert not all(asked(worth, 20, "a"))
    assert all(asked(worth, 20, "b"))


@given(st.lists(st.floats(-1.0, 1.0), max_size=400))
def test_cache_worth_without_cost_all_ask(shares: list[float]) -> None:
    worth = Worth(0.0)
    for share in shares:
        worth.note("a", share)

    assert all(asked(worth, 40, noise_s=0.0))


def test_cache_worth_drops_tenant_that_asked_longest_ago() -> None:
    worth = noted(Worth(COST_S), 0.0, 300, "first")
    for number in range(4095):
        worth.note(f"tenant {number}", 0.0)
    known = worth.why_left_out("first", IMAGE_S)

    worth.note("one more", 0.0)

    assert known
    assert worth.why_left_out("first", IMAGE_S) == ""
