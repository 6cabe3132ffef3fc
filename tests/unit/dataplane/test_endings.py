import pytest

from pentimento.dataplane import effects, events
from pentimento.dataplane.events import FailureKind
from tests.unit.dataplane.driver import Driver, kinds, only


def test_a_queued_request_that_is_cancelled_never_starts(driver: Driver) -> None:
    driver.queue()

    end = only(effects.PersistEnd, driver.send(events.CancelRequested("r1")))

    assert end.end is effects.End.CANCELLED
    assert driver.worker() == []
    assert kinds(driver.send(events.EndPersisted("r1", True))) == [effects.DeliverEnd]


def test_cancelling_a_running_request_stops_the_worker_first(driver: Driver) -> None:
    driver.worker()
    driver.run()

    assert kinds(driver.send(events.CancelRequested("r1"))) == [effects.StopAttempt, effects.PersistEnd]


def test_the_credit_of_a_stopped_attempt_comes_back_when_its_stream_ends(driver: Driver) -> None:
    driver.worker()
    token = driver.run("r1").fencing_token
    driver.queue("r2")
    driver.send(events.CancelRequested("r1"))

    after = driver.send(events.AttemptFailed("r1", token, FailureKind.STOPPED))

    assert kinds(after) == [effects.ReleaseGrant, effects.PersistAttempt]


def test_a_request_whose_client_left_says_so(driver: Driver) -> None:
    driver.queue()

    end = only(effects.PersistEnd, driver.send(events.CancelRequested("r1", client_left=True)))

    assert (end.end, end.reason) == (effects.End.CANCELLED, "CLIENT_LEFT")


def test_a_cancel_while_the_journal_accepts_ends_the_request_after_the_commit(driver: Driver) -> None:
    driver.arrive()
    assert driver.send(events.CancelRequested("r1")) == []

    assert kinds(driver.send(events.AcceptPersisted("r1"))) == [effects.Announce, effects.PersistEnd]


def test_a_cancel_while_the_attempt_is_journalled_wins(driver: Driver) -> None:
    driver.worker()
    persist = only(effects.PersistAttempt, driver.queue())
    driver.send(events.CancelRequested("r1"))

    assert kinds(driver.send(events.AttemptPersisted("r1", persist.fencing_token))) == [effects.ReleaseGrant]


def test_a_cancel_that_comes_after_the_picture_is_too_late(driver: Driver) -> None:
    driver.worker()
    token = driver.run().fencing_token
    driver.send(events.AttemptFinished("r1", token))

    assert driver.send(events.CancelRequested("r1")) == []


def test_a_second_cancel_does_nothing(driver: Driver) -> None:
    driver.queue()
    driver.send(events.CancelRequested("r1"))

    assert driver.send(events.CancelRequested("r1")) == []


def test_an_end_that_came_second_answers_what_the_journal_says(driver: Driver) -> None:
    driver.queue()
    driver.send(events.CancelRequested("r1"))

    assert kinds(driver.send(events.EndPersisted("r1", False))) == [effects.DeliverRecorded]


def test_a_queued_request_expires_at_its_deadline(driver: Driver) -> None:
    driver.queue(deadline=150.0)
    assert driver.dataplane.next_wakeup() == 150.0
    driver.now = 150.0

    assert only(effects.PersistEnd, driver.send(events.TimePassed())).end is effects.End.EXPIRED


def test_a_running_request_is_stopped_at_its_deadline(driver: Driver) -> None:
    driver.worker()
    driver.run(deadline=150.0)
    driver.now = 151.0

    assert kinds(driver.send(events.TimePassed())) == [effects.StopAttempt, effects.PersistEnd]


def test_a_deadline_that_the_worker_saw_first_expires_the_request(driver: Driver) -> None:
    driver.worker()
    token = driver.run().fencing_token

    after = driver.send(events.AttemptFailed("r1", token, FailureKind.DEADLINE))

    assert only(effects.PersistEnd, after).end is effects.End.EXPIRED


def test_the_deadline_does_not_undo_a_picture_that_is_being_committed(driver: Driver) -> None:
    driver.worker()
    token = driver.run(deadline=150.0).fencing_token
    driver.now = 149.0
    driver.send(events.AttemptFinished("r1", token))
    driver.now = 151.0

    assert driver.send(events.TimePassed()) == []
    assert effects.Deliver in kinds(driver.send(events.ResultCommitted("r1", token, True)))


def test_the_deadline_of_a_finished_request_is_nobodys(driver: Driver) -> None:
    driver.worker()
    token = driver.run(deadline=150.0).fencing_token
    driver.send(events.AttemptFinished("r1", token))
    driver.send(events.ResultCommitted("r1", token, True))
    driver.now = 151.0

    assert driver.send(events.TimePassed()) == []
    assert driver.dataplane.next_wakeup() is None


@pytest.mark.parametrize(
    ("event", "reason"),
    [(events.CancelRequested("r1"), "CANCELLED"), (events.TimePassed(), "DEADLINE_EXCEEDED")],
    ids=["cancelled", "expired"],
)
def test_an_end_says_why_in_the_journal_and_to_the_client(driver: Driver, event: events.Event, reason: str) -> None:
    driver.queue(deadline=150.0)
    driver.now = 150.0

    journalled = only(effects.PersistEnd, driver.send(event))
    told = only(effects.DeliverEnd, driver.send(events.EndPersisted("r1", True)))

    assert (journalled.reason, told.reason, told.message) == (reason, reason, journalled.message)
    names_setting = "--default-deadline-s of the frontdoor" in told.message
    assert names_setting is (reason == "DEADLINE_EXCEEDED")


def test_ends_are_counted_by_their_kind(driver: Driver) -> None:
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
    # Whom the client cancelled nobody dropped.
    assert (pool.arrived_count, pool.dropped_count) == (6, 4)
