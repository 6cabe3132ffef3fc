"""Steps are left out before anybody is turned away, and only where that is the deployment's mode."""

from dataclasses import replace

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.thinning import Pressure, ThinningMode, ThinningOffer, ThinningOption
from tests.unit.dataplane.driver import Driver, kinds, only

# Ten seconds of ten steps: 8 or 5 of them will do.
MILD, HARD = ThinningOption(4, 4, 0.99), ThinningOption(2, 3, 0.96)
OFFER = ThinningOffer(10, 0, (MILD, HARD))


def driver_in(mode: ThinningMode, **settings: object) -> Driver:
    """One worker of one credit, ten seconds a picture."""
    driver = Driver(DataplaneSettings(thinning=mode, **settings))  # type: ignore[arg-type]
    driver.profile("m", (1, 1.0))
    driver.worker()
    return driver


def started(driver: Driver, deadline_s: float, offer: ThinningOffer = OFFER) -> effects.Execute:
    return driver.start(driver.queue("r1", deadline=driver.now + deadline_s, work=10.0, thinning=offer))


@pytest.mark.parametrize(
    ("deadline_s", "steps"), [(10.0, ()), (9.9, (4, 5, 7, 8)), (8.0, (4, 5, 7, 8)), (7.9, (2, 4, 7)), (1.0, (2, 4, 7))]
)
def test_a_deadline_takes_as_many_steps_as_there_is_time_for(deadline_s: float, steps: tuple[int, ...]) -> None:
    assert started(driver_in(ThinningMode.DEADLINE), deadline_s).thinned_steps == steps
    assert started(driver_in(ThinningMode.OFF), deadline_s).thinned_steps == ()
    assert started(driver_in(ThinningMode.DEADLINE), deadline_s, ThinningOffer(10)).thinned_steps == ()


def test_who_could_be_thinned_is_not_turned_away() -> None:
    """Ten seconds until the one that runs is done, and five at the least after that."""
    for mode, kind in ((ThinningMode.OFF, effects.Reject), (ThinningMode.DEADLINE, effects.PersistAccepted)):
        driver = driver_in(mode)
        started(driver, 100.0)
        arrived = driver.arrive("r2", deadline=driver.now + 16.0, work=10.0, thinning=OFFER)

        assert kinds(arrived)[0] is kind
    assert kinds(driver.arrive("r3", deadline=driver.now + 16.0, work=10.0))[0] is effects.Reject


def test_who_waits_is_thinned_rather_than_dropped_and_dropped_where_that_is_not_enough() -> None:
    driver = driver_in(ThinningMode.DEADLINE, prediction_margin=0.0)
    token = started(driver, 100.0).fencing_token
    for name, deadline_s in (("r2", 35.0), ("r3", 33.0), ("r4", 26.0)):
        driver.queue(name, deadline=driver.now + deadline_s, work=10.0, thinning=OFFER)
    driver.now += 21.0
    after = driver.send(events.AttemptFinished("r1", token))

    assert [effect.request_id for effect in after if isinstance(effect, effects.Drop)] == ["r4"]
    execute = driver.start(after)
    assert (execute.request_id, execute.thinned_steps) == ("r3", (2, 4, 7))
    assert driver.dataplane.state.requests["r3"].attempt_work == 5.0


def test_load_thins_as_far_as_may_be_while_others_wait_for_long() -> None:
    driver = driver_in(ThinningMode.LOAD)
    token = started(driver, 1000.0).fencing_token
    for number in range(2, 6):
        driver.queue(f"r{number}", deadline=driver.now + 1000.0 + number, work=10.0, thinning=OFFER)
    taken = []
    for number in range(1, 5):
        execute = driver.start(driver.send(events.AttemptFinished(f"r{number}", token)))
        taken.append(execute.thinned_steps)
        token = execute.fencing_token

    assert taken == [(2, 4, 7), (2, 4, 7), (2, 4, 7), ()]
    assert driver.dataplane.state.counters.thinned == 3


def test_of_those_that_thinning_makes_room_for_a_plan_admits_as_many_more() -> None:
    driver = driver_in(ThinningMode.LOAD)
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 1), admission_rate=0.25)))
    admitted = []
    for number in range(8):
        answer = driver.arrive(f"r{number}", deadline=driver.now + 1000.0, work=10.0, thinning=OFFER)
        admitted.append(kinds(answer)[0] is effects.PersistAccepted)

    assert sum(admitted) == 4
    plain = [kinds(driver.arrive(f"p{number}", work=10.0))[0] is effects.PersistAccepted for number in range(8)]
    assert sum(plain) == 2


def test_a_plan_that_admits_a_share_says_that_there_is_load() -> None:
    driver = driver_in(ThinningMode.LOAD)
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 1), admission_rate=0.999)))
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 2), admission_rate=0.6)))

    assert started(driver, 1000.0).thinned_steps == (2, 4, 7)


def test_what_is_learnt_of_a_thinned_attempt_is_of_the_work_that_it_did() -> None:
    driver = driver_in(ThinningMode.DEADLINE)
    token = started(driver, 6.0).fencing_token
    driver.now += 5.0
    driver.send(events.AttemptFinished("r1", token))

    assert driver.dataplane.state.pool("m").speed.slowdown == pytest.approx(1.0)


def test_another_lane_thins_by_its_own_offer() -> None:
    driver = driver_in(ThinningMode.DEADLINE, drop_late=False)
    driver.worker("w2", model="big", model_digest="b")
    driver.profile("big", (1, 1.0))
    started(driver, 100.0)
    spare = (events.RouteOption("big", "b", 20.0, replace(OFFER, step_count=20)),)

    execute = driver.start(driver.queue("r2", deadline=driver.now + 9.0, work=10.0, spare=spare))

    assert (execute.worker_id, execute.thinned_steps) == ("w2", (4, 8, 12, 16))


def test_a_second_attempt_decides_anew() -> None:
    driver = driver_in(ThinningMode.DEADLINE)
    first = started(driver, 11.0)
    driver.now += 5.0
    driver.send(events.WorkerLost("w1", 1))
    second = driver.start(driver.worker(generation=2))

    assert first.thinned_steps == ()
    assert second.thinned_steps == (2, 4, 7)
    assert only(effects.CommitResult, driver.send(events.AttemptFinished("r1", second.fencing_token)))


def test_a_request_that_has_not_come_is_foreseen_as_it_would_be_thinned() -> None:
    """One runs for ten seconds and one waits for it: who comes now has twenty seconds less than its deadline."""
    driver = driver_in(ThinningMode.LOAD)
    pool = driver.dataplane.state.pool("m")
    idle = driver.dataplane.foreseen_pressure(pool, 10.0, 10, 30.0)
    started(driver, 1000.0)
    driver.queue("r2", deadline=driver.now + 1000.0, work=20.0, thinning=OFFER)
    crowded = driver.dataplane.foreseen_pressure(pool, 10.0, 10, 30.0)

    assert idle == Pressure(1.0, 30.0, False)
    assert crowded == Pressure(1.0, 10.0, True)


def running(mode: ThinningMode, deadline_s: float = 1000.0) -> tuple[Driver, int]:
    """A picture of ten seconds and ten steps, all of them taken so far."""
    driver = driver_in(mode, prediction_margin=0.0)
    execute = started(driver, deadline_s)
    assert execute.thinned_steps == ()
    return driver, execute.fencing_token


def progressed(driver: Driver, token: int, step: int, after_s: float = 0.0) -> list[effects.Effect]:
    driver.now += after_s
    return driver.send(events.AttemptProgressed("r1", token, step))


def crowd(driver: Driver) -> None:
    driver.queue("r2", deadline=driver.now + 1000.0, work=10.0)


@pytest.mark.parametrize(("step", "steps"), [(0, (2, 4, 7)), (1, (2, 4, 7)), (2, (4, 5, 7, 8)), (3, (4, 5, 7, 8))])
def test_a_picture_that_runs_is_thinned_behind_its_next_step_once_others_wait(
    step: int, steps: tuple[int, ...]
) -> None:
    driver, token = running(ThinningMode.LOAD)
    assert progressed(driver, token, 0) == []
    crowd(driver)

    assert progressed(driver, token, step) == [effects.ThinAttempt("r1", token, "w1", steps)]
    assert driver.dataplane.state.counters.thinned == 1
    # It takes them, and is not asked again.
    for seen in (*range(step, steps[0] + 1), *steps, 10):
        assert progressed(driver, token, seen) == []


def test_where_every_option_lies_behind_it_all_steps_are_taken() -> None:
    driver, token = running(ThinningMode.LOAD)
    crowd(driver)

    assert progressed(driver, token, 4) == []
    assert driver.dataplane.state.requests["r1"].attempt_work == 10.0


def test_a_device_that_is_slower_than_foretold_thins_for_the_deadline() -> None:
    """Ten steps in eleven seconds; the second took two."""
    driver, token = running(ThinningMode.DEADLINE, deadline_s=11.0)
    assert progressed(driver, token, 1, after_s=1.0) == []

    assert only(effects.ThinAttempt, progressed(driver, token, 2, after_s=2.0)).thinned_steps == (4, 5, 7, 8)
    assert running(ThinningMode.OFF, 11.0)[0].send(events.AttemptProgressed("r1", token, 2)) == []


def test_asked_too_late_it_is_asked_again_of_what_lies_ahead_or_takes_all() -> None:
    driver, token = running(ThinningMode.LOAD)
    crowd(driver)
    assert only(effects.ThinAttempt, progressed(driver, token, 1)).thinned_steps == (2, 4, 7)

    assert only(effects.ThinAttempt, progressed(driver, token, 3)).thinned_steps == (4, 5, 7, 8)
    assert progressed(driver, token, 6) == []
    request = driver.dataplane.state.requests["r1"]
    assert (request.thinned_steps, request.attempt_work) == ((), 10.0)
    assert driver.dataplane.state.pool("m").ends == [driver.now + 3.0]
    assert driver.dataplane.state.counters.thinned == 0


def test_a_retry_of_a_thinned_picture_decides_anew() -> None:
    driver, token = running(ThinningMode.LOAD)
    crowd(driver)
    progressed(driver, token, 1)
    driver.send(events.CancelRequested("r2"))
    driver.send(events.WorkerLost("w1", 1))
    second = driver.start(driver.worker(generation=2))

    assert (second.request_id, second.thinned_steps) == ("r1", ())
    assert progressed(driver, token, 5) == []


def test_its_credit_is_expected_earlier() -> None:
    driver, token = running(ThinningMode.LOAD)
    before = list(driver.dataplane.state.pool("m").ends)
    crowd(driver)
    progressed(driver, token, 1)

    assert (before, driver.dataplane.state.pool("m").ends) == ([driver.now + 10.0], [driver.now + 3.0])
