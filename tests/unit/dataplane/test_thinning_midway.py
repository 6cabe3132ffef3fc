"""A running image leaves out steps after its next one, once its deadline or load requires it."""

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.policies.thinning import ThinningMode, ThinningOffer, ThinningOption
from tests.unit.dataplane.driver import Driver, only, play
from tests.unit.dataplane.thinned import driver_in, started


def running(mode: ThinningMode, deadline_s: float = 1000.0) -> tuple[Driver, int]:
    """Return a driver with a running image of ten seconds and ten steps, none left out so far."""
    driver = driver_in(mode, prediction_margin=0.0)
    execute = started(driver, deadline_s)
    assert execute.thinned_steps == ()
    return driver, execute.fencing_token


def progressed(driver: Driver, token: int, step: int, after_s: float = 0.0) -> list[effects.Effect]:
    driver.now += after_s
    return driver.send(events.AttemptProgressed("r1", token, step))


def crowd(driver: Driver) -> None:
    driver.queue("r2", deadline=driver.now + 1000.0, work=10.0)


RUN = "run r1 work=10 thins=yes"
CROWDED = f"{RUN}, queue r2 work=10"


@pytest.mark.parametrize(
    ("mode", "script", "said"),
    [
        (ThinningMode.LOAD, f"{RUN}, progress r1 0", ""),
        # Once others wait, it is thinned after its next step, and not again while it follows.
        (ThinningMode.LOAD, f"{CROWDED}, progress r1 0", "r1 thins 2+4+7"),
        (ThinningMode.LOAD, f"{CROWDED}, progress r1 1", "r1 thins 2+4+7"),
        *[(ThinningMode.LOAD, f"{CROWDED}, progress r1 1, progress r1 {step}", "") for step in (1, 2, 4, 7, 10)],
        (ThinningMode.LOAD, f"{CROWDED}, progress r1 2", "r1 thins 4+5+7+8"),
        (ThinningMode.LOAD, f"{CROWDED}, progress r1 3", "r1 thins 4+5+7+8"),
        # It takes all steps if no option is left.
        (ThinningMode.LOAD, f"{CROWDED}, progress r1 4", ""),
        # The request came too late, and is repeated for the remaining steps.
        (ThinningMode.LOAD, f"{CROWDED}, progress r1 1, progress r1 3", "r1 thins 4+5+7+8"),
        (ThinningMode.LOAD, f"{CROWDED}, progress r1 1, progress r1 3, progress r1 6", ""),
        # Another attempt decides again, once the journal has it.
        (
            ThinningMode.LOAD,
            f"{CROWDED}, progress r1 1, cancel r2, lose w1, worker w1 generation=2, journal r1, progress r1 5",
            "",
        ),
        (ThinningMode.LOAD, "queue r1 work=10 thins=yes, queue r2 work=10, progress r1 1", ""),
        # Ten steps in eleven seconds; the second took two.
        (ThinningMode.DEADLINE, f"{RUN} within=11, wait 1, progress r1 1", ""),
        (ThinningMode.DEADLINE, f"{RUN} within=11, wait 1, progress r1 1, wait 2, progress r1 2", "r1 thins 4+5+7+8"),
        (ThinningMode.OFF, f"{RUN} within=11, wait 1, progress r1 1, wait 2, progress r1 2", ""),
    ],
)
def test_running_image_is_thinned_after_its_next_step(mode: ThinningMode, script: str, said: str) -> None:
    assert play(driver_in(mode, prediction_margin=0.0), script) == said


def test_late_thinning_counts_the_steps_that_run() -> None:
    driver = driver_in(ThinningMode.LOAD, prediction_margin=0.0)
    play(driver, f"{CROWDED}, progress r1 1")
    request, counters = driver.dataplane.state.requests["r1"], driver.dataplane.state.counters
    assert (request.thinned_steps, counters.thinned) == ((2, 4, 7), 1)
    assert driver.dataplane.state.pool("m").ends == [driver.now + 3.0]

    play(driver, "progress r1 3, progress r1 6")
    assert (request.thinned_steps, request.attempt_work, counters.thinned) == ((), 10.0, 0)
    assert driver.dataplane.state.pool("m").ends == [driver.now + 3.0]


def test_where_no_speed_is_known_the_steps_that_were_seen_tell() -> None:
    """Two seconds for the first: the eight behind the next one would take sixteen of the thirteen that are left."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE))
    driver.worker()
    token = started(driver, 15.0).fencing_token

    assert progressed(driver, token, 0) == []
    assert only(effects.ThinAttempt, progressed(driver, token, 1, after_s=2.0)).thinned_steps == (4, 5, 7, 8)


def test_next_attempt_ignores_steps_of_previous_one() -> None:
    """Six steps of the second attempt take six seconds, and there is time for fourteen more."""
    late = ThinningOffer(10, 0, (ThinningOption(8, 1, 0.99),))
    driver = driver_in(ThinningMode.DEADLINE, prediction_margin=0.0)
    first = started(driver, 20.0, late).fencing_token
    progressed(driver, first, 5)
    driver.send(events.WorkerLost("w1", 1))
    second = driver.start(driver.worker(generation=2)).fencing_token

    assert progressed(driver, second, 0) == []
    assert progressed(driver, second, 6, after_s=6.0) == []


def test_running_image_is_as_slow_as_batch_of_its_worker() -> None:
    """A second a step alone and two in a batch of two: nine steps follow the next one, with fifteen seconds left."""
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


def test_image_with_all_steps_keeps_expected_end() -> None:
    driver, token = running(ThinningMode.LOAD)
    before = list(driver.dataplane.state.pool("m").ends)

    assert progressed(driver, token, 3, after_s=2.0) == []

    assert driver.dataplane.state.pool("m").ends == before


def test_load_thins_image_of_unknown_speed_and_keeps_its_end() -> None:
    driver = Driver(DataplaneSettings(thinning=ThinningMode.LOAD))
    driver.worker()
    token = started(driver, 1000.0).fencing_token
    before = list(driver.dataplane.state.pool("m").ends)
    crowd(driver)

    assert only(effects.ThinAttempt, progressed(driver, token, 0)).thinned_steps == (2, 4, 7)
    assert driver.dataplane.state.pool("m").ends == before


def test_image_of_ended_request_is_not_thinned() -> None:
    """The request ended, and its attempt still runs."""
    driver, token = running(ThinningMode.LOAD)
    driver.send(events.CancelRequested("r1"))
    driver.send(events.EndPersisted("r1", True))
    crowd(driver)

    assert "r1" not in driver.dataplane.state.requests
    assert progressed(driver, token, 1) == []


def test_quick_steps_are_predicted_at_profiled_duration() -> None:
    """A tenth of a second for the first two; there are six seconds for the seven behind the next one."""
    driver, token = running(ThinningMode.DEADLINE)
    driver.dataplane.state.requests["r1"].deadline = driver.now + 6.2
    request = driver.dataplane.state.requests["r1"]
    request.seen = (0, driver.now)

    assert only(effects.ThinAttempt, progressed(driver, token, 2, after_s=0.2)).thinned_steps == (4, 5, 7, 8)


def test_profiled_duration_counts_before_two_steps() -> None:
    """Half a second each: nine steps within eight seconds."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE, prediction_margin=0.0))
    driver.profile("m", (1, 0.5))
    driver.worker()
    token = started(driver, 8.0).fencing_token

    assert progressed(driver, token, 0) == []
