"""Pauses between the tries of a call, drawn from a seeded generator."""

import random

import pytest

from pentimento.clients.retries import RetryPolicy


@pytest.mark.parametrize(
    ("attempt", "wished_ms", "shortest_s", "longest_s"),
    [
        (1, None, 0.1, 0.2),
        (3, None, 0.4, 0.8),
        (9, None, 1.5, 3.0),
        (1, 150, 0.15, 0.2),
        (1, 5000, 5.0, 5.0),
        (9, 60_000, 60.0, 60.0),
    ],
)
def test_pause_is_drawn_and_never_below_retry_info(
    attempt: int, wished_ms: int | None, shortest_s: float, longest_s: float
) -> None:
    policy = RetryPolicy(generator=random.Random(0))

    pauses = [policy.pause_s(attempt, wished_ms) for _ in range(200)]

    assert shortest_s <= min(pauses) <= max(pauses) <= longest_s
    assert min(pauses) == pytest.approx(shortest_s, rel=0.05)
    assert max(pauses) == pytest.approx(longest_s, rel=0.05)
