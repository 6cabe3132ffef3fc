"""How long to wait before what failed is tried again."""

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.backoff import Backoff

BACKOFF = Backoff(first_s=0.1, max_s=1.0)


@pytest.mark.parametrize(("failures", "delay_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (100_000, 1.0)])
def test_a_delay_is_twice_the_one_before_up_to_the_longest(failures: int, delay_s: float) -> None:
    assert BACKOFF.delay_s(failures) == delay_s


def test_a_first_delay_above_the_longest_is_the_longest() -> None:
    assert Backoff(first_s=3.0, max_s=1.0).delay_s(1) == 1.0


def test_delays_come_in_turn_from_the_first() -> None:
    assert list(islice(BACKOFF.delays_s(), 6)) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


@given(failures=st.integers(1, 10_000), seed=st.integers())
def test_a_random_delay_is_shorter_by_half_at_most(failures: int, seed: int) -> None:
    longest = BACKOFF.delay_s(failures)

    delay_s = BACKOFF.random_delay_s(failures, random.Random(seed))

    assert longest / 2 <= delay_s <= longest


def test_random_delays_spread_over_that_half() -> None:
    source = random.Random(7)

    delays_s = [BACKOFF.random_delay_s(5, source) for _ in range(200)]

    assert min(delays_s) < 0.55
    assert max(delays_s) > 0.95
