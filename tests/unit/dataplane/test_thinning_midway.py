"""Steps are left out of a picture that already runs, behind its next step, once its deadline or load asks for it."""

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.policies.thinning import ThinningMode, ThinningOffer, ThinningOption
from tests.unit.dataplane.driver import Driver, only
from tests.unit.dataplane.thinned import OFFER, driver_in, started


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
    request = driver.dataplane.state.requests["r1"]
    assert (request.thinned_steps, driver.dataplane.state.counters.thinned) == (steps, 1)


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


def test_where_no_speed_is_known_the_steps_that_were_seen_tell() -> None:
    """Two seconds for the first: the eight behind the next one would take sixteen of the thirteen that are left."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE))
    driver.worker()
    token = started(driver, 15.0).fencing_token

    assert progressed(driver, token, 0) == []
    assert only(effects.ThinAttempt, progressed(driver, token, 1, after_s=2.0)).thinned_steps == (4, 5, 7, 8)


def test_what_was_seen_of_one_attempt_says_nothing_of_the_next() -> None:
    """Of the second six steps take six seconds, and there is time for fourteen more."""
    late = ThinningOffer(10, 0, (ThinningOption(8, 1, 0.99),))
    driver = driver_in(ThinningMode.DEADLINE, prediction_margin=0.0)
    first = started(driver, 20.0, late).fencing_token
    progressed(driver, first, 5)
    driver.send(events.WorkerLost("w1", 1))
    second = driver.start(driver.worker(generation=2)).fencing_token

    assert progressed(driver, second, 0) == []
    assert progressed(driver, second, 6, after_s=6.0) == []


def test_a_picture_that_runs_is_as_slow_as_its_worker_s_batch_is() -> None:
    """A second a step alone and two beside another, of which there are nine behind the next and fifteen seconds."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE, prediction_margin=0.0))
    driver.profile("m", (1, 1.0), (2, 2.0))
    driver.worker(credit_count=2)
    token = started(driver, 100.0).fencing_token
    driver.dataplane.state.requests["r1"].deadline = driver.now + 15.0
    assert progressed(driver, token, 0) == []

    driver.start(driver.queue("r2", work=10.0))

    assert only(effects.ThinAttempt, progressed(driver, token, 0)).thinned_steps == (4, 5, 7, 8)
    # Seven steps of two seconds for the one, ten for the other.
    assert driver.dataplane.state.pool("m").ends == [driver.now + 14.0, driver.now + 20.0]


def test_a_deadline_is_not_thinned_for_by_a_word_of_another_attempt() -> None:
    driver, token = running(ThinningMode.LOAD)
    crowd(driver)

    assert driver.send(events.AttemptProgressed("r1", token - 1, 1)) == []
    assert driver.send(events.AttemptProgressed("nobody", token, 1)) == []


def test_a_picture_that_takes_all_steps_ends_when_it_was_expected_to() -> None:
    driver, token = running(ThinningMode.LOAD)
    before = list(driver.dataplane.state.pool("m").ends)

    assert progressed(driver, token, 3, after_s=2.0) == []

    assert driver.dataplane.state.pool("m").ends == before


def test_load_thins_a_picture_whose_speed_nobody_knows_and_says_nothing_of_its_end() -> None:
    driver = Driver(DataplaneSettings(thinning=ThinningMode.LOAD))
    driver.worker()
    token = started(driver, 1000.0).fencing_token
    before = list(driver.dataplane.state.pool("m").ends)
    crowd(driver)

    assert only(effects.ThinAttempt, progressed(driver, token, 0)).thinned_steps == (2, 4, 7)
    assert driver.dataplane.state.pool("m").ends == before


def test_before_the_journal_has_an_attempt_nothing_of_it_is_left_out() -> None:
    driver = driver_in(ThinningMode.LOAD)
    token = only(effects.PersistAttempt, driver.queue("r1", work=10.0, thinning=OFFER)).fencing_token
    crowd(driver)

    assert progressed(driver, token, 1) == []


def test_of_a_picture_that_nobody_waits_for_any_more_nothing_is_left_out() -> None:
    """It ended, and its attempt still runs."""
    driver, token = running(ThinningMode.LOAD)
    driver.send(events.CancelRequested("r1"))
    driver.send(events.EndPersisted("r1", True))
    crowd(driver)

    assert "r1" not in driver.dataplane.state.requests
    assert progressed(driver, token, 1) == []


def test_steps_that_take_less_than_foretold_are_believed_to_take_as_long() -> None:
    """A tenth of a second for the first two; there are six seconds for the seven behind the next one."""
    driver, token = running(ThinningMode.DEADLINE)
    driver.dataplane.state.requests["r1"].deadline = driver.now + 6.2
    request = driver.dataplane.state.requests["r1"]
    request.seen = (0, driver.now)

    assert only(effects.ThinAttempt, progressed(driver, token, 2, after_s=0.2)).thinned_steps == (4, 5, 7, 8)


def test_before_two_steps_were_seen_those_foretold_count() -> None:
    """Half a second each: nine of them within eight seconds."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE, prediction_margin=0.0))
    driver.profile("m", (1, 0.5))
    driver.worker()
    token = started(driver, 8.0).fencing_token

    assert progressed(driver, token, 0) == []
