"""Steps are left out before a request is rejected, and only in that mode of the deployment."""

from dataclasses import replace

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.requests import Request
from pentimento.dataplane.state import State
from pentimento.dataplane.thinning import device_s, foreseen_pressure, is_shorter_from_noise, least_work
from pentimento.domain.fleet import Plan, PoolPlan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.thinning import Pressure, ThinningMode, ThinningOffer
from tests.unit.dataplane.driver import OFFER, Driver, kinds, only
from tests.unit.dataplane.thinned import driver_in, started


@pytest.mark.parametrize(
    ("deadline_s", "steps"), [(10.0, ()), (9.9, (4, 5, 7, 8)), (8.0, (4, 5, 7, 8)), (7.9, (2, 4, 7)), (1.0, (2, 4, 7))]
)
def test_deadline_keeps_steps_that_fit(deadline_s: float, steps: tuple[int, ...]) -> None:
    assert started(driver_in(ThinningMode.DEADLINE), deadline_s).thinned_steps == steps
    assert started(driver_in(ThinningMode.OFF), deadline_s).thinned_steps == ()
    assert started(driver_in(ThinningMode.DEADLINE), deadline_s, ThinningOffer(10)).thinned_steps == ()


def test_request_that_can_be_thinned_is_admitted() -> None:
    """Ten seconds until the running request is done, and at least five after that."""
    for mode, kind in ((ThinningMode.OFF, effects.Reject), (ThinningMode.DEADLINE, effects.PersistAccepted)):
        driver = driver_in(mode)
        started(driver, 100.0)
        arrived = driver.arrive("r2", deadline=driver.now + 16.0, work=10.0, thinning=OFFER)

        assert kinds(arrived)[0] is kind
    assert kinds(driver.arrive("r3", deadline=driver.now + 16.0, work=10.0))[0] is effects.Reject


def test_waiting_request_is_thinned_before_it_is_dropped() -> None:
    driver = driver_in(ThinningMode.DEADLINE, prediction_margin=0.0)
    token = started(driver, 100.0).fencing_token
    for name, deadline_s in (("r2", 35.0), ("r3", 33.0), ("r4", 26.0)):
        driver.queue(name, deadline=driver.now + deadline_s, work=10.0, thinning=OFFER)
    driver.now += 21.0
    after = driver.send(events.AttemptFinished("r1", token))

    assert [effect.request_id for effect in after if isinstance(effect, effects.PersistEnd)] == ["r4"]
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
def test_latent_with_more_steps_than_thinning_is_longer(
    mode: ThinningMode, waiting_count: int, steps_left: int, shorter: bool
) -> None:
    driver = driver_in(mode)
    for number in range(waiting_count + 1 if waiting_count else 0):
        driver.queue(f"r{number}", work=10.0, thinning=OFFER)

    assert is_shorter_from_noise(driver.dataplane.state, "m", OFFER, steps_left) is shorter
    assert not is_shorter_from_noise(driver.dataplane.state, "m", ThinningOffer(10), steps_left)


def planned(sequence: int, thins: bool, admission_rate: float = 1.0) -> events.PlanReceived:
    pools = (PoolPlan("m", "m", (), thins=thins), PoolPlan("other", "other", ()))
    return events.PlanReceived(Plan(PlanVersion(1, sequence), pools=pools, admission_rate=admission_rate))


@pytest.mark.parametrize(("thins", "thinnable", "plain"), [(False, 4, 2), (True, 2, 0)])
def test_plan_admits_more_thinnable_requests_unless_it_counts_them(thins: bool, thinnable: int, plain: int) -> None:
    """A quarter of the demand; half of the steps will do."""
    driver = driver_in(ThinningMode.LOAD)
    driver.send(planned(1, thins, admission_rate=0.25))

    admitted = [driver.arrive(f"r{number}", deadline=1e6, work=10.0, thinning=OFFER) for number in range(8)]
    assert sum(kinds(answer)[0] is effects.PersistAccepted for answer in admitted) == thinnable
    if plain:
        admitted = [driver.arrive(f"p{number}", deadline=1e6, work=10.0) for number in range(8)]
        assert sum(kinds(answer)[0] is effects.PersistAccepted for answer in admitted) == plain


@pytest.mark.parametrize(
    ("mode", "plans", "steps"),
    [
        # A plan that admits a share means load.
        (ThinningMode.LOAD, [(False, 0.999), (False, 0.6)], (2, 4, 7)),
        (ThinningMode.LOAD, [(True, 1.0)], (2, 4, 7)),
        (ThinningMode.DEADLINE, [(True, 1.0)], ()),
        (ThinningMode.LOAD, [(True, 1.0), (False, 1.0)], ()),
    ],
)
def test_plan_that_counts_on_fewer_steps_gets_them_where_load_may_thin(
    mode: ThinningMode, plans: list[tuple[bool, float]], steps: tuple[int, ...]
) -> None:
    driver = driver_in(mode)
    for sequence, (thins, rate) in enumerate(plans, start=1):
        driver.send(planned(sequence, thins, rate))

    assert started(driver, 1000.0).thinned_steps == steps


@pytest.mark.parametrize(("mode", "spare"), [(ThinningMode.LOAD, 1.0), (ThinningMode.OFF, 0.0)])
def test_pool_counts_spare_work_of_requests_from_noise(mode: ThinningMode, spare: float) -> None:
    driver = driver_in(mode)
    for name in ("r1", "r2"):
        driver.queue(name, work=10.0, thinning=OFFER)
    driver.queue("hit", work=5.0, thinning=ThinningOffer(10, 5), start="latent")

    told = driver.dataplane.state.pool("m").thinnable
    assert (told.request_count, told.spare_shares) == (2, spare)


def test_thinned_attempt_teaches_speed_of_its_actual_work() -> None:
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


def test_second_attempt_decides_again() -> None:
    driver = driver_in(ThinningMode.DEADLINE)
    first = started(driver, 11.0)
    driver.now += 5.0
    driver.send(events.WorkerLost("w1", 1))
    second = driver.start(driver.worker(generation=2))

    assert first.thinned_steps == ()
    assert second.thinned_steps == (2, 4, 7)
    assert only(effects.CommitResult, driver.send(events.AttemptFinished("r1", second.fencing_token)))


def test_a_request_that_has_not_come_is_foreseen_as_it_would_be_thinned() -> None:
    """One runs for ten seconds and one waits: a new request has twenty seconds less than its deadline."""
    driver = driver_in(ThinningMode.LOAD)
    pool = driver.dataplane.state.pool("m")
    idle = foreseen_pressure(driver.dataplane.state, pool, 10.0, 10, 30.0)
    started(driver, 1000.0)
    driver.queue("r2", deadline=driver.now + 1000.0, work=20.0, thinning=OFFER)
    crowded = foreseen_pressure(driver.dataplane.state, pool, 10.0, 10, 30.0)

    assert idle == Pressure(1.0, 30.0, False)
    assert crowded == Pressure(1.0, 10.0, True)


@pytest.mark.parametrize(("credit_counts", "step_s"), [((), 1.0), ((1,), 1.0), ((2,), 1.2), ((4,), 2.0), ((1, 3), 1.2)])
def test_foreseen_pressure_assumes_full_batch(credit_counts: tuple[int, ...], step_s: float) -> None:
    """Ten steps of ten units of work; a batch is a worker's share of the credits."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE))
    driver.profile("m", (1, 1.0), (2, 1.2), (4, 2.0))
    for number, credit_count in enumerate(credit_counts):
        driver.worker(f"w{number}", credit_count=credit_count)

    foreseen = foreseen_pressure(driver.dataplane.state, driver.dataplane.state.pool("m"), 10.0, 10, 30.0)

    assert foreseen.step_s == pytest.approx(step_s)


def test_foreseen_pressure_subtracts_fixed_time_and_adds_margin() -> None:
    """Two seconds once and ten of steps; durations of images scatter by a fifth."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE, prediction_margin=2.0))
    driver.send(events.ProfilesReceived((events.SpeedProfile("m", ((1, 1.0),), fixed_s=2.0),)))
    driver.worker()
    pool = driver.dataplane.state.pool("m")
    steady = foreseen_pressure(driver.dataplane.state, pool, 10.0, 10, 30.0)
    pool.speed.spread = 0.2
    scattered = foreseen_pressure(driver.dataplane.state, pool, 10.0, 10, 30.0)

    assert steady == Pressure(1.0, 28.0, False)
    assert (scattered.step_s, scattered.remaining_s) == (pytest.approx(1.4), pytest.approx(30.0 - 1.4 * 2.0))


@pytest.mark.parametrize(("waiting", "overloaded"), [(0, False), (1, False), (2, True)])
def test_pool_is_overloaded_beyond_quarter_of_credits_waiting(waiting: int, overloaded: bool) -> None:
    driver = Driver(DataplaneSettings(thinning=ThinningMode.LOAD))
    driver.worker(credit_count=4)
    for number in range(4 + waiting):
        driver.queue(f"r{number}")

    foreseen = foreseen_pressure(driver.dataplane.state, driver.dataplane.state.pool("m"), 10.0, 10, 30.0)

    assert foreseen == Pressure(None, None, overloaded)  # its speed is unknown


def test_a_plan_that_admits_all_says_nothing_of_load() -> None:
    driver = driver_in(ThinningMode.LOAD)
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 1), admission_rate=1.0)))

    assert not foreseen_pressure(driver.dataplane.state, driver.dataplane.state.pool("m"), 10.0, 10, 30.0).overloaded


@pytest.mark.parametrize(("mode", "work"), [(ThinningMode.OFF, 10.0), (ThinningMode.DEADLINE, 5.0)])
def test_least_work_is_work_of_fewest_steps(mode: ThinningMode, work: float) -> None:
    request = Request("r", "t", "m", 10.0, 1000.0, thinning=OFFER)

    assert least_work(State(1, DataplaneSettings(thinning=mode)), request) == work


def test_reserve_place_is_thinned_by_larger_batch() -> None:
    """Ten seconds alone and twenty in a batch of two, with sixteen left."""
    driver = Driver(DataplaneSettings(thinning=ThinningMode.DEADLINE, prediction_margin=0.0))
    driver.profile("m", (1, 1.0), (2, 2.0), (3, 4.0))
    driver.worker(credit_count=1, reserve_count=1)
    driver.run("aged", deadline=driver.now + 100.0)

    assert started(driver, 16.0).thinned_steps == (4, 5, 7, 8)


@pytest.mark.parametrize(
    ("mode", "offer", "seconds"),
    [
        (ThinningMode.ALWAYS, OFFER, 2.0),
        (ThinningMode.ALWAYS, ThinningOffer(10), 4.0),
        (ThinningMode.LOAD, OFFER, 4.0),
    ],
    ids=["five of ten steps", "nothing may be left out", "nobody waits"],
)
def test_a_place_in_a_full_batch_takes_its_share_of_the_device(
    mode: ThinningMode, offer: ThinningOffer, seconds: float
) -> None:
    """A unit of work takes 1 s alone and 1.6 s in a batch of four."""
    driver = Driver(DataplaneSettings(thinning=mode))
    driver.profile("m", (1, 1.0), (4, 1.6))
    driver.worker(credit_count=4)

    assert device_s(driver.dataplane.state, "m", 10.0, offer) == pytest.approx(seconds)
    driver.worker("other", model="other")
    for pool in ("other", "unknown"):
        assert device_s(driver.dataplane.state, pool, 10.0, offer) is None
