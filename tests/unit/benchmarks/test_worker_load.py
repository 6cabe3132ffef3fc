"""Test the benchmarks' load: the same stream for every server, and failures that count as late."""

import math

import pytest

from benchmarks.worker_load import Answer, WorkerArrival, drive, failures, latency_quantile, poisson, shifted


def test_poisson_same_seed_gives_same_stream() -> None:
    assert poisson(2.0, 50, seed=3) == poisson(2.0, 50, seed=3)
    assert poisson(2.0, 50, seed=3) != poisson(2.0, 50, seed=4)


def test_poisson_has_requested_rate() -> None:
    arrivals = poisson(5.0, 5000, seed=0)

    assert arrivals[-1].at_s == pytest.approx(1000.0, rel=0.05)
    assert [arrival.at_s for arrival in arrivals] == sorted(arrival.at_s for arrival in arrivals)


def test_shifted_stream_changes_numbers_only() -> None:
    first, second = poisson(1.0, 3, seed=0), shifted(poisson(1.0, 3, seed=0), 100)

    assert [arrival.at_s for arrival in first] == [arrival.at_s for arrival in second]
    assert [arrival.number for arrival in second] == [100, 101, 102]


def answer(latency_s: float) -> Answer:
    return Answer(WorkerArrival(0, 0.0, 0), latency_s, 0.0)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 2.0), (0.75, 3.0), (0.76, math.inf), (1.0, math.inf)])
def test_latency_quantile_among_failures_is_infinite(share: float, expected: float) -> None:
    assert latency_quantile([answer(value) for value in (3.0, 1.0, math.inf, 2.0)], share) == expected


async def test_drive_failure_leaves_other_requests() -> None:
    async def ask(arrival: WorkerArrival) -> None:
        if arrival.number == 1:
            raise RuntimeError("no")

    outcome = await drive(ask, [WorkerArrival(number, 0.0, 0) for number in range(3)])

    assert failures(outcome) == ["RuntimeError: no"]
    assert [math.isinf(one.latency_s) for one in outcome.answers] == [False, True, False]
    assert outcome.images_per_s * outcome.seconds == pytest.approx(2)


async def test_drive_abandoned_stream_sends_nothing_more() -> None:
    asked = []

    async def ask(arrival: WorkerArrival) -> None:
        asked.append(arrival.number)

    arrivals = [WorkerArrival(number, 0.02 * number, 0) for number in range(10)]
    outcome = await drive(ask, arrivals, lambda answers: len(answers) >= 3)

    assert outcome.cut_short
    assert asked == [one.arrival.number for one in outcome.answers] == [0, 1, 2]
