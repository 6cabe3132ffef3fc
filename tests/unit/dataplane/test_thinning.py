"""Steps are left out before anybody is turned away, and only where that is the deployment's mode."""

from dataclasses import replace

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.requests import Request
from pentimento.dataplane.state import State
from pentimento.dataplane.thinning import least_work
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


@pytest.mark.parametrize(
    ("mode", "waiting_count", "steps_left", "shorter"),
    [
        (ThinningMode.ALWAYS, 0, 6, True),
        (ThinningMode.ALWAYS, 0, 5, False),
        (ThinningMode.LOAD, 2, 6, True),
        (ThinningMode.LOAD, 0, 6, False),
        (ThinningMode.DEADLINE, 2, 6, False),
    ],
)
def test_a_latent_that_leaves_more_steps_than_thinning_is_longer_where_the_fewest_are_taken(
    mode: ThinningMode, waiting_count: int, steps_left: int, shorter: bool
) -> None:
    driver = driver_in(mode)
    for number in range(waiting_count + 1 if waiting_count else 0):
        driver.queue(f"r{number}", work=10.0, thinning=OFFER)

    assert driver.dataplane.is_shorter_from_noise("m", OFFER, steps_left) is shorter
    assert not driver.dataplane.is_shorter_from_noise("m", ThinningOffer(10), steps_left)


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


@pytest.mark.parametrize(("credit_counts", "step_s"), [((), 1.0), ((1,), 1.0), ((2,), 1.2), ((4,), 2.0), ((1, 3), 1.2)])
def test_what_is_foreseen_is_of_a_batch_that_is_full(credit_counts: tuple[int, ...], step_s: float) -> None:
    """Ten steps of ten units of work; a batch is a worker's share of the credits."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE))
    driver.profile("m", (1, 1.0), (2, 1.2), (4, 2.0))
    for number, credit_count in enumerate(credit_counts):
        driver.worker(f"w{number}", credit_count=credit_count)

    foreseen = driver.dataplane.foreseen_pressure(driver.dataplane.state.pool("m"), 10.0, 10, 30.0)

    assert foreseen.step_s == pytest.approx(step_s)


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


def test_what_is_foreseen_leaves_out_the_time_that_is_not_steps_and_adds_the_margin() -> None:
    """Two seconds once and ten of steps, of pictures that scatter by a fifth."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE, prediction_margin=2.0))
    driver.send(events.ProfilesReceived((events.SpeedProfile("m", ((1, 1.0),), fixed_s=2.0),)))
    driver.worker()
    pool = driver.dataplane.state.pool("m")
    steady = driver.dataplane.foreseen_pressure(pool, 10.0, 10, 30.0)
    pool.speed.spread = 0.2
    scattered = driver.dataplane.foreseen_pressure(pool, 10.0, 10, 30.0)

    assert steady == Pressure(1.0, 28.0, False)
    assert (scattered.step_s, scattered.remaining_s) == (pytest.approx(1.4), pytest.approx(30.0 - 1.4 * 2.0))


@pytest.mark.parametrize(("waiting", "overloaded"), [(0, False), (1, False), (2, True)])
def test_a_pool_is_overloaded_where_more_wait_than_a_quarter_of_its_credits(waiting: int, overloaded: bool) -> None:
    driver = Driver(DataplaneSettings(thinning=ThinningMode.LOAD))
    driver.worker(credit_count=4)
    for number in range(4 + waiting):
        driver.queue(f"r{number}")

    foreseen = driver.dataplane.foreseen_pressure(driver.dataplane.state.pool("m"), 10.0, 10, 30.0)

    assert foreseen == Pressure(None, None, overloaded)  # nobody knows how fast it is


def test_a_plan_that_admits_all_says_nothing_of_load() -> None:
    driver = driver_in(ThinningMode.LOAD)
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 1), admission_rate=1.0)))

    assert not driver.dataplane.foreseen_pressure(driver.dataplane.state.pool("m"), 10.0, 10, 30.0).overloaded


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


@pytest.mark.parametrize(("mode", "work"), [(ThinningMode.OFF, 10.0), (ThinningMode.DEADLINE, 5.0)])
def test_the_least_work_is_that_of_the_fewest_steps_where_steps_are_left_out(mode: ThinningMode, work: float) -> None:
    request = Request("r", "t", "m", 10.0, 1000.0, thinning=OFFER)

    assert least_work(State(1, DataplaneSettings(thinning=mode)), request) == work


def test_who_takes_a_place_beyond_the_credits_is_thinned_by_that_larger_batch() -> None:
    """Ten seconds alone and twenty beside another, of which there are sixteen."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE, prediction_margin=0.0))
    driver.profile("m", (1, 1.0), (2, 2.0), (3, 4.0))
    driver.worker(credit_count=1, reserve_count=1)
    driver.run("aged", deadline=driver.now + 100.0)

    assert started(driver, 16.0).thinned_steps == (4, 5, 7, 8)
