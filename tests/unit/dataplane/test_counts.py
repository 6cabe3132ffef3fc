"""Test the counts for operators and the planner, and the first state of a dataplane."""

import pytest

from pentimento.dataplane import effects, events
from pentimento.dataplane.commits import fall_back
from pentimento.dataplane.events import FailureKind
from pentimento.dataplane.pools import Pool
from pentimento.dataplane.predictions import predicted_wait_s
from pentimento.dataplane.requests import Request
from pentimento.dataplane.state import State
from pentimento.policies.thinning import ThinningOffer, ThinningOption
from tests.unit.dataplane.driver import Driver


@pytest.mark.parametrize(("after_s", "late"), [(-0.1, 0), (0.0, 0), (0.1, 1)])
def test_image_after_deadline_counts_as_late(driver: Driver, after_s: float, late: int) -> None:
    driver.worker()
    token = driver.run("r1", deadline=driver.now + 10.0).fencing_token
    driver.send(events.AttemptFinished("r1", token))
    driver.now += 10.0 + after_s

    driver.send(events.ResultCommitted("r1", token, True))

    pool = driver.dataplane.state.pools["m"]
    assert (driver.dataplane.state.counters.completed, pool.completed_count, pool.late_count) == (1, 1, late)


def test_rerun_after_fault_is_counted_and_after_rejection_is_not(driver: Driver) -> None:
    driver.worker("w1")
    driver.worker("w2")
    first = driver.run("r1")
    driver.send(events.AttemptStarted("r1", first.fencing_token))
    again = driver.start(driver.send(events.AttemptFailed("r1", first.fencing_token, FailureKind.WORKER_LOST)))
    driver.send(events.AttemptFailed("r1", again.fencing_token, FailureKind.NO_CREDIT))

    assert driver.dataplane.state.counters.rerun == 1


def test_the_wait_of_a_pool_of_which_nothing_is_known_is_five_seconds() -> None:
    driver = Driver()
    driver.queue("waits")

    assert predicted_wait_s(State(1), "nobody") == 5.0
    assert predicted_wait_s(driver.dataplane.state, "m") == 5.0


def test_timers_of_requests_that_are_gone_do_not_pile_up(driver: Driver) -> None:
    driver.arrive("stays", deadline=5000.0)
    for number in range(3000):
        driver.arrive(f"r{number}", deadline=10_000.0)
        driver.send(events.AcceptDropped(f"r{number}"))

    assert len(driver.dataplane.state.timers) < 1100
    assert driver.dataplane.next_wakeup() == 5000.0


def test_timers_are_swept_so_seldom_that_each_is_looked_at_a_few_times(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, is_set = [], State.is_set
    monkeypatch.setattr(State, "is_set", lambda state, timer: looked_at.append(timer) or is_set(state, timer))
    for number in range(500):
        driver.arrive(f"stays-{number}", deadline=5000.0)
    for number in range(3000):
        driver.arrive(f"r{number}", deadline=10_000.0)
        driver.send(events.AcceptDropped(f"r{number}"))

    assert len(looked_at) < 3 * 3500


@pytest.mark.parametrize("word", [events.AttemptFinished, lambda *key: events.AttemptFailed(*key, FailureKind.FATAL)])
def test_a_worker_s_word_before_the_journal_s_is_not_believed(driver: Driver, word: object) -> None:
    """An attempt that was never sent cannot end."""
    driver.worker()
    driver.queue("r1")
    token = driver.dataplane.state.requests["r1"].fencing_token

    assert driver.send(word("r1", token)) == []  # type: ignore[operator]
    assert driver.send(events.AttemptPersisted("r1", token, True)) != []


def test_deadlines_at_one_time_end_requests_in_arrival_order(driver: Driver) -> None:
    for request_id in ("z", "a", "m"):
        driver.queue(request_id, deadline=150.0)
    driver.now = 150.0

    ended = [e.request_id for e in driver.send(events.TimePassed()) if isinstance(e, effects.PersistEnd)]

    assert ended == ["z", "a", "m"]


def test_every_request_that_falls_back_is_counted() -> None:
    state = State(1)
    for name in ("r1", "r2"):
        request = Request(name, "t", "m", 1.0, 1000.0, fallback_token=7)
        state.add(request)
        fall_back(state, request, "PREDICTED_LATE")

    assert state.counters.fallen_back == 2


def test_least_work_of_pool_follows_requests() -> None:
    """Five steps of ten, and all."""
    thinned = Request("a", "t", "m", 8.0, 9.0, thinning=ThinningOffer(10, 0, (ThinningOption(2, 3, 0.96),)))
    plain = Request("b", "t", "m", 3.0, 9.0)
    pool, seen = Pool("m"), []

    for request, step in ((thinned, 1), (plain, 1), (thinned, -1), (plain, -1)):
        pool.wait_for(request, step)
        seen.append((pool.waiting_work, pool.waiting_least_work))

    assert seen == [(8.0, 4.0), (11.0, 7.0), (3.0, 3.0), (0.0, 0.0)]


def test_counters_count_ends_by_kind(driver: Driver) -> None:
    """Two of each."""
    for number in range(2):
        driver.worker()
        token = driver.run(f"failed-{number}").fencing_token
        driver.send(events.AttemptFailed(f"failed-{number}", token, FailureKind.FATAL, "NAN", "not a number"))
        driver.worker(credit_count=0)
        driver.queue(f"cancelled-{number}")
        driver.send(events.CancelRequested(f"cancelled-{number}"))
        driver.queue(f"expired-{number}", deadline=driver.now + 10.0)
        driver.now += 10.0
        driver.send(events.TimePassed())
        for kind in ("failed", "cancelled", "expired"):
            driver.send(events.EndPersisted(f"{kind}-{number}", True))

    counters, pool = driver.dataplane.state.counters, driver.dataplane.state.pools["m"]
    assert (counters.accepted, counters.failed, counters.cancelled, counters.expired) == (6, 2, 2, 2)
    # A request that its client cancelled is not dropped.
    assert (pool.arrived_count, pool.dropped_count) == (6, 4)
