"""Spare lanes, pairs, hedges and standbys."""

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.events import FailureKind
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.driver import Driver, kinds, only

LARGE = (events.RouteOption("large", "dl", 3.0),)


def large_worker(driver: Driver, **changes: object) -> list[effects.Effect]:
    return driver.worker("large", model="large", model_digest="dl", **changes)  # type: ignore[arg-type]


def test_a_large_worker_takes_hits_when_it_has_no_misses(driver: Driver) -> None:
    driver.queue("hit", spare=LARGE)

    attempt = only(effects.PersistAttempt, large_worker(driver))

    assert (attempt.request_id, attempt.option) == ("hit", 1)
    assert driver.dataplane.state.requests["hit"].work == 3.0
    assert driver.worker("small") == []


def test_a_large_worker_takes_its_own_first(driver: Driver) -> None:
    driver.queue("hit", spare=LARGE)
    driver.queue("miss", pool="large", digest="dl")

    assert only(effects.PersistAttempt, large_worker(driver)).request_id == "miss"


def test_small_workers_come_before_spare_ones(driver: Driver) -> None:
    large_worker(driver)
    driver.worker("small")

    attempt = only(effects.PersistAttempt, driver.queue("hit", spare=LARGE))

    assert (attempt.worker_id, attempt.option) == ("small", 0)


def test_the_lane_of_the_first_attempt_is_that_of_all(driver: Driver) -> None:
    driver.queue("hit", spare=LARGE)
    run = driver.start(large_worker(driver))
    driver.worker("small")

    assert kinds(driver.send(events.AttemptFailed("hit", run.fencing_token, FailureKind.NO_CREDIT))) == [
        effects.ReleaseGrant
    ]
    assert only(effects.PersistAttempt, large_worker(driver)).attempt_number == 2


def test_a_pair_takes_a_credit_of_both(driver: Driver) -> None:
    driver.worker("w1", pairable=True)
    driver.worker("w2", pairable=True)
    persist = only(effects.PersistAttempt, driver.queue("r1", pair=True))

    started = driver.send(events.AttemptPersisted("r1", persist.fencing_token))

    reserved = only(effects.ReservePair, started)
    assert kinds(started) == [effects.ReservePair, effects.Execute]
    assert {reserved.worker_id, reserved.peer_id} == {"w1", "w2"}
    assert driver.queue("r2") == []
    after = driver.send(events.AttemptFinished("r1", persist.fencing_token))
    assert only(effects.PersistAttempt, after).request_id == "r2"


def test_a_pair_is_not_worth_a_busy_worker(driver: Driver) -> None:
    driver.worker("w1", credit_count=2, pairable=True)
    driver.run("other")
    driver.worker("w2", pairable=True)
    persist = only(effects.PersistAttempt, driver.queue("r1", pair=True))

    assert effects.ReservePair not in kinds(driver.send(events.AttemptPersisted("r1", persist.fencing_token)))


def test_a_worker_goes_on_alone_when_its_peer_is_lost(driver: Driver) -> None:
    driver.worker("w1", pairable=True)
    driver.worker("w2", pairable=True)
    persist = only(effects.PersistAttempt, driver.queue("r1", pair=True))
    reserved = only(effects.ReservePair, driver.send(events.AttemptPersisted("r1", persist.fencing_token)))

    assert driver.send(events.WorkerLost(reserved.peer_id, 1)) == []

    assert driver.dataplane.state.requests["r1"].losses == 0
    assert effects.CommitResult in kinds(driver.send(events.AttemptFinished("r1", persist.fencing_token)))


def hedging_driver() -> Driver:
    driver = Driver(DataplaneSettings(hedge_after=2.0))
    driver.profile("m", (1, 10.0))
    driver.worker("w1")
    return driver


def hedge(driver: Driver) -> tuple[int, int]:
    """Tokens of a slow attempt on w1 and of its hedge on w2, both running."""
    slow = driver.run("r1").fencing_token
    driver.worker("w2")
    driver.now += 20.0
    due = driver.send(events.TimePassed())
    assert kinds(due) == [effects.Hedge, effects.PersistAttempt]
    second = only(effects.PersistAttempt, due)
    assert second.worker_id == "w2"
    driver.send(events.AttemptPersisted("r1", second.fencing_token))
    return slow, second.fencing_token


def test_a_slow_attempt_is_hedged_and_the_loser_stopped() -> None:
    driver = hedging_driver()
    slow, second = hedge(driver)

    after = driver.send(events.AttemptFinished("r1", second))

    assert kinds(after) == [effects.StopAttempt, effects.CommitResult]
    assert only(effects.StopAttempt, after).fencing_token == slow
    assert kinds(driver.send(events.AttemptFailed("r1", slow, FailureKind.STOPPED))) == [effects.ReleaseGrant]


def test_a_slow_attempt_that_makes_it_first_is_committed_under_the_newest_token() -> None:
    driver = hedging_driver()
    slow, second = hedge(driver)

    commit = only(effects.CommitResult, driver.send(events.AttemptFinished("r1", slow)))

    assert (commit.fencing_token, commit.picture_token) == (second, slow)


def test_of_two_attempts_one_may_fail() -> None:
    driver = hedging_driver()
    slow, second = hedge(driver)

    assert kinds(driver.send(events.AttemptFailed("r1", second, FailureKind.FATAL))) == [effects.ReleaseGrant]
    assert only(effects.CommitResult, driver.send(events.AttemptFinished("r1", slow))).picture_token == slow


def test_nothing_is_hedged_by_default(driver: Driver) -> None:
    driver.profile("m", (1, 10.0))
    driver.worker("w1")
    driver.run("r1")
    driver.worker("w2")

    assert driver.dataplane.next_wakeup() == 1000.0


def test_nothing_is_hedged_while_others_wait() -> None:
    driver = hedging_driver()
    driver.run("r1")
    driver.queue("waits")
    driver.now += 20.0

    assert driver.send(events.TimePassed()) == []


def test_a_standby_takes_nothing_before_it_took_over() -> None:
    driver = Driver(epoch=0)
    assert only(effects.Reject, driver.arrive("r1")).reason == "STANDBY"

    driver.send(events.TookOver(7))
    driver.worker()

    assert driver.run("r1").fencing_token == 7 << 20


def test_an_older_epoch_takes_nothing_over() -> None:
    driver = Driver(epoch=7)

    driver.send(events.TookOver(3))

    assert driver.dataplane.state.epoch == 7


def test_of_two_workers_under_one_name_the_later_start_counts(driver: Driver) -> None:
    driver.worker("w1", generation=5)
    driver.run("r1")

    assert driver.worker("w1", generation=4) == []
    assert driver.dataplane.state.workers["w1"].worker_generation == 5


def test_a_plan_that_makes_no_sense_changes_nothing(driver: Driver) -> None:
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 1), admission_rate=float("nan"))))

    assert driver.dataplane.state.plan is None
    assert driver.dataplane.state.counters.refused_plans == 1


def test_a_worker_that_lies_about_its_credits_is_bounded(driver: Driver) -> None:
    driver.worker("w1", credit_count=2**31)
    driver.worker("w2", credit_count=-5)

    workers = driver.dataplane.state.workers
    assert (workers["w1"].credit_count, workers["w2"].credit_count) == (4096, 0)


def test_a_worker_lost_twice_is_remembered_for_its_whole_time(driver: Driver) -> None:
    """Its first absence's timer must not forget it in its second: it may still run what was taken away."""
    driver.worker()
    driver.send(events.WorkerLost("w1", 1))
    driver.now += 20.0
    driver.worker()
    driver.send(events.WorkerLost("w1", 1))
    driver.now += 15.0

    driver.send(events.TimePassed())

    assert "w1" in driver.dataplane.state.workers


def test_what_a_forgotten_worker_still_runs_takes_its_credit(driver: Driver) -> None:
    driver.worker()
    run = driver.run("r1")
    driver.send(events.WorkerLost("w1", 1))
    driver.now += 31.0
    driver.send(events.TimePassed())
    assert not driver.dataplane.state.workers

    back = driver.worker("w1", running=frozenset({("r1", run.fencing_token)}))

    assert kinds(back) == [effects.StopAttempt]


def test_a_hedge_is_due_after_as_many_times_what_was_predicted() -> None:
    driver = hedging_driver()

    driver.run("r1")

    assert driver.dataplane.next_wakeup() == driver.now + 2.0 * 10.0
