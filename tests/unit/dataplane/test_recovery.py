from pentimento.dataplane import effects, events
from pentimento.dataplane.events import FailureKind, RecoveredRequest
from tests.unit.dataplane.driver import Driver, kinds, only


def recover(driver: Driver, **changes: object) -> list[effects.Effect]:
    values = {"request_id": "r1", "tenant": "t", "pool": "m", "work": 1.0, "deadline": 1000.0, **changes}
    return driver.send(events.Recovered((RecoveredRequest(**values),)))  # type: ignore[arg-type]


def recover_running(driver: Driver) -> list[effects.Effect]:
    return recover(driver, routed=True, model_digest="d", attempt_number=1, fencing_token=7, worker_id="w1")


def test_what_an_earlier_frontdoor_left_running_for_nobody_is_stopped_and_takes_its_credit() -> None:
    driver = Driver(epoch=2)
    left_over = frozenset({("r0", 1)})

    assert driver.worker("w1", running=left_over) == [effects.StopAttempt("r0", 1, "w1")]

    assert driver.queue("r1") == []
    assert only(effects.PersistAttempt, driver.worker("w1")).request_id == "r1"


def test_an_orphan_whose_time_is_over_leaves_the_others_of_its_worker_waiting(driver: Driver) -> None:
    orphan = {"routed": True, "model_digest": "d", "attempt_number": 1, "worker_id": "w1"}
    recover(driver, request_id="first", fencing_token=7, **orphan)
    driver.now += 2.0
    recover(driver, request_id="second", fencing_token=8, **orphan)
    driver.now += 1.0
    driver.send(events.TimePassed())

    attached = only(effects.Attach, driver.worker("w1", credit_count=1))

    assert attached.request_id == "second"


def test_an_orphan_that_runs_again_goes_before_those_that_never_ran(driver: Driver) -> None:
    recover_running(driver)
    driver.queue("fresh", deadline=500.0)
    driver.now += 3.0
    driver.send(events.TimePassed())

    assert only(effects.PersistAttempt, driver.worker("w2", credit_count=1)).request_id == "r1"


def test_an_attempt_that_is_attached_to_is_expected_to_end_a_service_time_from_then_on(driver: Driver) -> None:
    driver.profile("m", (1, 10.0), (2, 12.0))
    recover_running(driver)
    driver.now += 2.0

    driver.worker("w1", credit_count=2)

    assert driver.dataplane.state.pools["m"].ends == [driver.now + 12.0]


def test_recovered_request_continues_where_it_was() -> None:
    driver = Driver()
    assert kinds(recover(driver)) == [effects.PrepareRoute, effects.ResolveRoute]
    assert recover(driver) == []  # taken over once

    driver = Driver()
    recover(driver, routed=True, model_digest="d")
    assert only(effects.PersistAttempt, driver.worker()).attempt_number == 1

    driver = Driver()
    recover(driver, routed=True, model_digest="d", deadline=99.0)
    assert only(effects.PersistEnd, driver.send(events.TimePassed())).end is effects.End.EXPIRED


def test_running_attempt_is_attached_to_at_its_worker(driver: Driver) -> None:
    assert recover_running(driver) == []

    attach = only(effects.Attach, driver.worker("w1", credit_count=1))

    assert (attach.fencing_token, attach.attempt_number) == (7, 1)
    assert driver.queue("r2") == []  # it takes the credit
    assert effects.CommitResult in kinds(driver.send(events.AttemptFinished("r1", 7)))
    # A worker that was there before.
    other = Driver()
    other.worker("w1")
    assert kinds(recover_running(other)) == [effects.Attach]
    rerun = only(effects.PersistAttempt, other.send(events.AttemptFailed("r1", 7, FailureKind.GONE)))
    assert (rerun.fencing_token > 7, rerun.attempt_number) == (True, 2)


def test_orphan_whose_worker_stays_away_runs_elsewhere(driver: Driver) -> None:
    recover_running(driver)
    driver.worker("w2")
    driver.now += 3.0

    assert only(effects.PersistAttempt, driver.send(events.TimePassed())).worker_id == "w2"
    assert not driver.dataplane.state.orphans
    assert driver.worker("w1") == []


def test_orphan_may_be_cancelled(driver: Driver) -> None:
    recover_running(driver)

    assert kinds(driver.send(events.CancelRequested("r1"))) == [effects.StopAttempt, effects.PersistEnd]
    assert driver.worker("w1") == []
