"""Test the waiting time before a retry."""

import random
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.clock import Backoff

BACKOFF = Backoff(first_s=0.1, max_s=1.0)


def test_delay_doubles_up_to_the_longest() -> None:
    assert [BACKOFF.delay_s(failures) for failures in (1, 2, 3, 4, 5, 100_000)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert list(islice(BACKOFF.delays_s(), 6)) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert Backoff(first_s=3.0, max_s=1.0).delay_s(1) == 1.0


@given(failures=st.integers(1, 10_000), seed=st.integers())
def test_random_delay_is_shorter_by_half_at_most(failures: int, seed: int) -> None:
    longest = BACKOFF.delay_s(failures)

    delay_s = BACKOFF.random_delay_s(failures, random.Random(seed))

    assert longest / 2 <= delay_s <= longest


def test_random_delays_spread_over_upper_half() -> None:
    source = random.Random(7)

    delays_s = [BACKOFF.random_delay_s(5, source) for _ in range(200)]

    assert min(delays_s) < 0.55
    assert max(delays_s) > 0.95
