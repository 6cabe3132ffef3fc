"""Test the figures of rounds with and without preemption."""

import math

import pytest

from benchmarks.engine_preempt import DEADLINE_MS, figures_of
from benchmarks.worker_load import Answer, StreamOutcome, WorkerArrival


def outcome(short_s: list[float], seconds: float, error: str = "") -> StreamOutcome:
    short = [
        Answer(WorkerArrival(number, 0.0, 40, DEADLINE_MS), value, value, error) for number, value in enumerate(short_s)
    ]
    long = [Answer(WorkerArrival(100, 0.0, 0), 5.0, 5.0)]
    return StreamOutcome((*short, *long), seconds)


def test_p99_ratio_covers_short_requests_of_all_rounds() -> None:
    rounds = [{"with": outcome([1.0, 1.0], 10.0), "without": outcome([4.0, 4.0], 10.0)}] * 3

    ratio, throughput, *_ = figures_of(rounds)

    assert ratio.value == pytest.approx(0.25)
    assert throughput.value == pytest.approx(1.0)
    assert ratio.ok and throughput.ok


@pytest.mark.parametrize("side", ["with", "without"])
def test_failure_on_either_side_gives_no_figure(side: str) -> None:
    sides = {"with": outcome([1.0], 10.0), "without": outcome([4.0], 10.0)}
    sides[side] = outcome([math.inf], 10.0, error="Unavailable: gone")

    figures = figures_of([sides])

    assert all(figure.value is None and not figure.ok for figure in figures)
