"""Test the load on one server: the same stream for every server, failures that count as late, and the search for the
highest load."""

import asyncio
import math
from types import SimpleNamespace

import pytest

from benchmarks import worker_load
from benchmarks.joint import search
from benchmarks.worker_load import (
    MOST_RUNS,
    STEP,
    Answer,
    Ask,
    ClimbTrial,
    Promise,
    RateRun,
    WorkerArrival,
    best,
    climb,
    climb_up,
    drive,
    failures,
    limit_of,
    poisson,
    shifted,
)


def test_poisson_stream_has_rate_and_depends_on_seed() -> None:
    arrivals = poisson(5.0, 5000, seed=0)

    assert arrivals == poisson(5.0, 5000, seed=0) != poisson(5.0, 5000, seed=4)
    assert arrivals[-1].at_s == pytest.approx(1000.0, rel=0.05)
    assert [arrival.at_s for arrival in arrivals] == sorted(arrival.at_s for arrival in arrivals)


def test_shifted_stream_changes_numbers_only() -> None:
    first, second = poisson(1.0, 3, seed=0), shifted(poisson(1.0, 3, seed=0), 100)

    assert [arrival.at_s for arrival in first] == [arrival.at_s for arrival in second]
    assert [arrival.number for arrival in second] == [100, 101, 102]


async def test_drive_failure_leaves_other_requests() -> None:
    outcome = await drive(failing(every=3), [WorkerArrival(number, 0.0, 0) for number in range(1, 4)])

    assert failures(outcome) == ["RuntimeError: no"]
    assert [math.isinf(one.latency_s) for one in outcome.answers] == [False, False, True]
    assert outcome.images_per_s * outcome.seconds == pytest.approx(2)


async def test_drive_abandoned_stream_sends_nothing_more() -> None:
    arrivals = [WorkerArrival(number, 0.02 * number, 0) for number in range(10)]
    outcome = await drive(failing(every=99), arrivals, lambda answers: len(answers) >= 3)

    assert outcome.cut_short
    assert [one.arrival.number for one in outcome.answers] == [0, 1, 2]


def failing(every: int) -> Ask:
    async def ask(arrival: WorkerArrival) -> None:
        if arrival.number and arrival.number % every == 0:
            raise RuntimeError("no")

    return ask


def run_of(rate_per_s: float, held: bool) -> RateRun:
    return RateRun("side", "phase", 0, rate_per_s, 10, 10, rate_per_s, 2.0, 0, held)


class Server:
    """Meet the target up to a rate."""

    def __init__(self, most: float) -> None:
        self.most = most

    async def __call__(self, rate_per_s: float) -> RateRun:
        return run_of(rate_per_s, rate_per_s <= self.most)


@pytest.mark.parametrize(
    ("most", "rates", "held"),
    [
        pytest.param(1.2, [1.0, STEP, STEP**2], [True, True, False], id="from a held rate"),
        pytest.param(0.9, [1.0, 1 / STEP, 1 / STEP**2], [False, False, True], id="from a missed rate"),
    ],
)
async def test_climb_ends_at_first_change(most: float, rates: list[float], held: list[bool]) -> None:
    runs = await climb(Server(most), 1.0)

    assert [run.rate_per_s for run in runs] == pytest.approx(rates)
    assert [run.held for run in runs] == held


async def test_climb_without_limit_ends_after_most_runs() -> None:
    assert len(await climb(Server(0.0), 1.0)) == len(await climb(Server(1e9), 1.0)) == MOST_RUNS
    assert len(await climb_up(Server(0.0), 1.0)) == 1


def test_best_returns_fastest_held_run() -> None:
    assert best([run_of(1.0, True), run_of(1.1, True), run_of(1.2, False)]) == run_of(1.1, True)
    assert best([run_of(1.2, False)]) is None
    assert limit_of([run_of(1.0, True), run_of(1.1, False)]) == run_of(1.0, True)


@pytest.mark.parametrize("held", [True, False])
def test_limit_of_rejects_endless_climb(held: bool) -> None:
    with pytest.raises(RuntimeError, match="no limit"):
        limit_of([run_of(1.0, held), run_of(1.1, held)])


@pytest.mark.parametrize(("late", "early", "broken"), [(2, 3, False), (3, 0, True)])
def test_promise_breaks_above_five_percent_late(late: int, early: int, broken: bool) -> None:
    answers = [Answer(WorkerArrival(0, 0.0, 0), seconds, 0.0) for seconds in [9.0] * late + [0.5] * early]

    assert Promise(1.0).is_broken(answers, request_count=40) is broken


@pytest.mark.parametrize(("every", "held", "failed"), [(99, True, 0), (19, False, 1)])
async def test_trial_run_holds_without_failure(every: int, held: bool, failed: int) -> None:
    trial = ClimbTrial("side", renumbered(failing(every)), Promise(5.0), 20, "search")

    run = await trial.run(1000.0, seed=0)

    assert (run.held, run.failed, run.answered) == (held, failed, 20)


def renumbered(ask: Ask) -> Ask:
    """Count the requests of a run from 0, since a climb numbers all its runs."""
    first: list[int] = []

    async def ask_renumbered(arrival: WorkerArrival) -> None:
        first.append(arrival.number)
        await ask(WorkerArrival(arrival.number - min(first), 0.0, 0))

    return ask_renumbered


async def test_trial_run_ends_once_bound_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is answered before the next one is due, on any machine."""
    waiting: list[asyncio.Future[None]] = []

    def sleep(seconds: float) -> "asyncio.Future[None]":
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    monkeypatch.setattr(worker_load, "asyncio", SimpleNamespace(sleep=sleep, gather=asyncio.gather))
    trial = ClimbTrial("side", failing(every=10**9), Promise(-1e9), 40, "search")
    running = asyncio.create_task(trial.run(100.0, seed=0))
    while len(waiting) < 40:  # noqa: ASYNC110 - nothing announces it
        await asyncio.sleep(0)
    for due in waiting:
        due.set_result(None)
        await asyncio.sleep(0)

    run = await running

    assert (run.held, run.answered) == (False, 3)


@pytest.mark.parametrize("most", [0, 1, 7, 40])
@pytest.mark.parametrize("guess", [0, 8, 59])
def test_search_tries_last_carried_load_and_next(most: int, guess: int) -> None:
    tried: list[int] = []

    def is_carried(number: int) -> bool:
        tried.append(number)
        return number <= most

    search(is_carried, guess)

    assert {most, most + 1} <= set(tried)
    assert len(set(tried)) <= 16
