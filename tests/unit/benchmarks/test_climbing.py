"""Test the search for a server's highest load."""

import asyncio
from types import SimpleNamespace

import pytest

from benchmarks import worker_load
from benchmarks.climbing import MOST_RUNS, STEP, ClimbTrial, Promise, RateRun, best, climb, climb_up, limit_of
from benchmarks.worker_load import Answer, WorkerArrival


def run_of(rate_per_s: float, held: bool) -> RateRun:
    return RateRun("side", "phase", 0, rate_per_s, 10, 10, rate_per_s, 1.0, 2.0, 0, held)


class Server:
    """Meet the target up to a rate."""

    def __init__(self, most: float) -> None:
        self.most = most

    async def __call__(self, rate_per_s: float) -> RateRun:
        return run_of(rate_per_s, rate_per_s <= self.most)


async def test_climb_from_held_rate_ends_at_first_miss() -> None:
    runs = await climb(Server(1.2), 1.0)

    assert [run.rate_per_s for run in runs] == pytest.approx([1.0, STEP, STEP**2])
    assert [run.held for run in runs] == [True, True, False]


async def test_climb_from_missed_rate_ends_at_first_held() -> None:
    runs = await climb(Server(0.9), 1.0)

    assert [run.rate_per_s for run in runs] == pytest.approx([1.0, 1 / STEP, 1 / STEP**2])
    assert [run.held for run in runs] == [False, False, True]


async def test_climb_without_limit_ends_after_most_runs() -> None:
    assert len(await climb(Server(0.0), 1.0)) == len(await climb(Server(1e9), 1.0)) == MOST_RUNS
    assert len(await climb_up(Server(0.0), 1.0)) == 1


def test_best_returns_fastest_held_run() -> None:
    assert best([run_of(1.0, True), run_of(1.1, True), run_of(1.2, False)]) == run_of(1.1, True)
    assert best([run_of(1.2, False)]) is None


def test_limit_of_lies_between_held_and_missed_rates() -> None:
    assert limit_of([run_of(1.0, True), run_of(1.1, False)]) == run_of(1.0, True)


@pytest.mark.parametrize("held", [True, False])
def test_limit_of_rejects_endless_climb(held: bool) -> None:
    with pytest.raises(RuntimeError, match="no limit"):
        limit_of([run_of(1.0, held), run_of(1.1, held)])


def answers(late: int, early: int) -> list[Answer]:
    return [Answer(WorkerArrival(0, 0.0, 0), 9.0, 0.0)] * late + [Answer(WorkerArrival(0, 0.0, 0), 0.5, 0.0)] * early


def test_promise_breaks_above_five_percent_late() -> None:
    promise = Promise(1.0)

    assert not promise.is_broken(answers(late=2, early=3), request_count=40)
    assert promise.is_broken(answers(late=3, early=0), request_count=40)


async def test_trial_run_within_bound_holds() -> None:
    async def ask(arrival: WorkerArrival) -> None:
        pass

    run = await ClimbTrial("side", ask, Promise(5.0), 20, "search").run(1000.0, seed=0)

    assert run.held
    assert run.answered == 20


async def test_trial_run_ends_once_bound_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is answered before the next one is due, on any machine."""
    waiting: list[asyncio.Future[None]] = []

    def sleep(seconds: float) -> "asyncio.Future[None]":
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    async def ask(arrival: WorkerArrival) -> None:
        """immediately, which is later than the target here"""

    monkeypatch.setattr(worker_load, "asyncio", SimpleNamespace(sleep=sleep, gather=asyncio.gather))
    running = asyncio.create_task(ClimbTrial("side", ask, Promise(-1e9), 40, "search").run(100.0, seed=0))
    while len(waiting) < 40:  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0)
    for due in waiting:
        due.set_result(None)
        await asyncio.sleep(0)

    run = await running

    assert not run.held
    assert run.answered == 3


async def test_trial_run_with_failure_does_not_hold() -> None:
    async def ask(arrival: WorkerArrival) -> None:
        if arrival.number % 20 == 0:
            raise RuntimeError("no")

    run = await ClimbTrial("side", ask, Promise(5.0), 20, "search").run(1000.0, seed=0)

    assert not run.held
    assert run.failed == 1
    assert run.row()["p95_s"] is not None
