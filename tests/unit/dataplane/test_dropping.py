import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.effects import End
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.driver import Driver, kinds, only


@pytest.fixture
def busy() -> Driver:
    """Return a driver with one worker of one credit, ten seconds an image, one request running and two waiting."""
    driver = Driver()
    driver.profile("m", (1, 10.0))
    driver.worker()
    driver.run("running")
    driver.queue("waiting-1")
    driver.queue("waiting-2")
    return driver


def test_rejected_request_is_admitted_after_retry_time(driver: Driver) -> None:
    """One request runs for five minutes and none waits: another would end after ten, and has less than seven."""
    driver.profile("m", (1, 300.0))
    driver.worker()
    run = driver.run("running")

    reject = only(effects.Reject, driver.arrive("r1", deadline=driver.now + 400.0))
    driver.now += reject.retry_after_ms / 1000
    driver.send(events.AttemptFinished("running", run.fencing_token))

    assert (reject.reason, reject.retry_after_ms) == ("PREDICTED_LATE", 300_000)
    assert kinds(driver.arrive("r1", deadline=driver.now + 400.0))[0] is effects.PersistAccepted


def test_request_that_can_make_it_or_may_be_late_is_admitted(busy: Driver) -> None:
    assert kinds(busy.arrive("r1", deadline=busy.now + 45.0))[0] is effects.PersistAccepted
    busy.send(events.PlanReceived(Plan(PlanVersion(1, 1), drops_late=False)))
    assert kinds(busy.arrive("late", deadline=busy.now + 1.0))[0] is effects.PersistAccepted

    keeping = Driver(DataplaneSettings(drop_late=False))
    keeping.profile("m", (1, 10.0))
    keeping.worker()
    for number in range(3):
        keeping.queue(f"r{number}")
    assert kinds(keeping.arrive("late", deadline=keeping.now + 1.0))[0] is effects.PersistAccepted


@pytest.mark.parametrize(
    ("waiting", "started", "dropped"),
    [
        ({"late": 1.0}, "late", []),  # alone it is tried
        ({"just": 10.0, "other": 100.0}, "just", []),
        ({"late": 1.0, "other": 100.0}, "other", ["late"]),
    ],
)
def test_credit_goes_to_first_request_that_is_in_time(
    driver: Driver, waiting: dict[str, float], started: str, dropped: list[str]
) -> None:
    driver.profile("m", (1, 10.0))
    if len(waiting) == 1:
        driver.worker()
    after = []
    for request_id, deadline_s in waiting.items():
        after += driver.queue(request_id, deadline=driver.now + deadline_s)
    after += driver.worker()

    assert only(effects.PersistAttempt, after).request_id == started
    assert [effect.request_id for effect in after if isinstance(effect, effects.PersistEnd)] == dropped


def test_late_request_is_dropped_at_its_turn(busy: Driver) -> None:
    """Admitted in time, but the one before took 18 s longer than predicted; a fifth of that is the spread now."""
    busy.queue("r1", deadline=busy.now + 45.0)
    token = busy.dataplane.state.requests["running"].fencing_token
    busy.now += 28.0

    after = busy.send(events.AttemptFinished("running", token))

    drop = only(effects.PersistEnd, after)
    assert (drop.request_id, drop.end, drop.reason) == ("r1", End.DROPPED, "PREDICTED_LATE")
    # 28 s, and a fifth of 18 s.
    assert drop.message == "predicted to take 31.6 s from now, 17 s were left"
    assert only(effects.PersistAttempt, after).request_id == "waiting-1"
    end = only(effects.DeliverEnd, busy.send(events.EndPersisted("r1", True)))
    # Three wait, and images take 13.6 s as learned: half of the queue will be gone by then.
    assert (end.end, end.reason, end.retry_after_ms) == (End.DROPPED, "PREDICTED_LATE", 20_400)
    assert busy.dataplane.state.counters.dropped == 1


def test_the_wait_of_a_modest_tenant_is_not_that_of_a_greedy_one(busy: Driver) -> None:
    for number in range(20):
        busy.queue(f"greedy-{number}", tenant="greedy")

    assert only(effects.Reject, busy.arrive("r1", deadline=busy.now + 60.0, tenant="greedy"))
    assert kinds(busy.arrive("r2", deadline=busy.now + 60.0, tenant="modest"))[0] is effects.PersistAccepted


def test_a_tenant_fills_its_share_of_the_queue_only() -> None:
    driver = Driver(DataplaneSettings(queue_limit=4))
    for number in range(3):
        driver.arrive(f"greedy-{number}", tenant="greedy")
    driver.arrive("modest-0", tenant="modest")

    reject = only(effects.Reject, driver.arrive("greedy-3", tenant="greedy"))

    assert (reject.reason, "3 of 2 requests of this tenant" in reject.message) == ("QUEUE_FULL", True)
    assert kinds(driver.arrive("modest-1", tenant="modest"))[0] is effects.PersistAccepted


def test_attempts_that_began_together_end_together(driver: Driver) -> None:
    """Four images of ten seconds began together six seconds ago: a new request has a place in four seconds, with up
    to three others waiting; the fifth waits another ten."""
    driver.profile("m", (4, 10.0))
    driver.worker(credit_count=4)
    for number in range(4):
        driver.run(f"running-{number}")
    driver.now += 6.0
    for number in range(4):
        assert kinds(driver.arrive(f"in-time-{number}", deadline=driver.now + 14.5))[0] is effects.PersistAccepted

    assert only(effects.Reject, driver.arrive("late", deadline=driver.now + 23.5)).reason == "PREDICTED_LATE"
    assert kinds(driver.arrive("later", deadline=driver.now + 24.5))[0] is effects.PersistAccepted


def test_request_without_fallback_image_is_not_dropped_once_routed(busy: Driver) -> None:
    """Its route costs more than was estimated at admission: it is tried all the same."""
    busy.arrive("r1", deadline=busy.now + 45.0)
    busy.send(events.AcceptPersisted("r1"))

    assert busy.send(events.RouteResolved("r1", "m", "d", 10.0)) == []
    assert busy.dataplane.state.pools["m"].waiting_count == 3
