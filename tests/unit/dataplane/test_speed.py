import math

import pytest

from pentimento.dataplane import effects, events
from pentimento.dataplane.events import SpeedProfile
from pentimento.dataplane.speed import Speed, is_sane
from tests.unit.dataplane.driver import Driver, kinds, only


def test_between_measured_batch_sizes_speeds_lie_on_the_straight_line() -> None:
    speed = Speed(SpeedProfile("m", ((2, 1.0), (4, 2.0), (8, 2.4)), fixed_s=0.5))

    assert [speed.seconds_per_work(batch) for batch in (1, 2, 3, 4, 6, 8, 99)] == pytest.approx(
        [1.0, 1.0, 1.5, 2.0, 2.2, 2.4, 2.4]
    )
    assert speed.seconds(10.0, 4) == pytest.approx(20.5)


def test_without_a_profile_nothing_is_known_before_the_first_picture() -> None:
    assert Speed().seconds(1.0, 1) is None


@pytest.mark.parametrize(
    "profile",
    [
        SpeedProfile("m", ()),
        SpeedProfile("m", ((2, 1.0), (1, 1.0))),
        SpeedProfile("m", ((0, 1.0),)),
        SpeedProfile("m", ((1, math.nan),)),
        SpeedProfile("m", ((1, -1.0),)),
        SpeedProfile("m", ((1, 1.0),), fixed_s=math.inf),
    ],
)
def test_a_profile_that_makes_no_sense_is_left_out(profile: SpeedProfile, driver: Driver) -> None:
    assert not is_sane(profile)

    driver.send(events.ProfilesReceived((profile,)))

    assert not driver.dataplane.state.profiles


def test_measured_speeds_correct_the_profile(driver: Driver) -> None:
    """Profiled as 1 s, every picture takes 3."""
    driver.profile()
    driver.worker()
    for number in range(30):
        run = driver.run(f"r{number}")
        driver.now += 3.0
        driver.send(events.AttemptFinished(f"r{number}", run.fencing_token))

    assert driver.dataplane.state.pools["m"].speed.slowdown == pytest.approx(3.0, rel=0.01)


def test_what_no_deadline_leaves_time_for_is_learnt_too(driver: Driver) -> None:
    """Profiled as 1 s; nothing is done within the 3 s that every request has."""
    driver.profile()
    driver.worker()
    for number in range(30):
        run = driver.run(f"r{number}", deadline=driver.now + 3.0)
        driver.now += 3.0
        driver.send(events.TimePassed())
        driver.send(events.AttemptFailed(f"r{number}", run.fencing_token, events.FailureKind.STOPPED))

    assert driver.dataplane.state.pools["m"].speed.slowdown == pytest.approx(3.0, rel=0.01)


def test_a_margin_is_worth_as_many_seconds_as_attempts_scatter() -> None:
    speed = Speed(SpeedProfile("m", ((1, 1.0),)))
    for _ in range(200):
        speed.learn(0.8)
        speed.learn(1.2)

    steady, cautious = speed.seconds(10.0, 1), speed.seconds(10.0, 1, margin=2.0)

    assert steady == pytest.approx(10.0, abs=0.5)
    assert cautious is not None and steady is not None
    assert cautious - steady == pytest.approx(2.0 * 0.2 * 10.0, rel=0.2)


def test_who_comes_in_is_judged_with_a_margin(driver: Driver) -> None:
    """Ten seconds each for the one that runs, one that waits, and itself, which may take two more: 32 s."""
    driver.profile("m", (1, 10.0))
    driver.worker()
    driver.dataplane.state.pools["m"].speed.spread = 0.2
    driver.run("running")
    driver.queue("waiting")

    rejected = driver.arrive("tight", deadline=driver.now + 31.0)
    admitted = driver.arrive("loose", deadline=driver.now + 33.0)

    assert kinds(rejected) == [effects.Reject]
    assert effects.PersistAccepted in kinds(admitted)


def test_who_comes_when_credits_are_about_to_come_back_waits_less(driver: Driver) -> None:
    """Ten seconds a picture, one runs, one waits: it takes 30 s for who comes as the first begins, 20 s as it ends."""
    driver.profile("m", (1, 10.0))
    driver.worker()
    driver.run("running")
    driver.queue("waiting")

    early = driver.arrive("early", deadline=driver.now + 29.0)
    driver.now += 10.0
    late = driver.arrive("late", deadline=driver.now + 21.0)

    assert kinds(early) == [effects.Reject]
    assert effects.PersistAccepted in kinds(late)


def test_the_faster_worker_is_offered_work_first(driver: Driver) -> None:
    driver.profile()
    driver.worker("slow")
    driver.worker("fast")
    for name, seconds in (("r1", 4.0), ("r2", 1.0)):
        run = driver.run(name)
        assert run.worker_id == ("slow" if name == "r1" else "fast")
        driver.now += seconds
        driver.send(events.AttemptFinished(name, run.fencing_token))
        driver.worker(run.worker_id)

    assert only(effects.PersistAttempt, driver.queue("r3")).worker_id == "fast"


def test_a_larger_batch_on_a_fast_worker_may_cost_less_than_a_slow_one(driver: Driver) -> None:
    driver.profile("m", (1, 1.0), (2, 1.2))
    driver.worker("slow")
    driver.dataplane.state.workers["slow"].slowdown = 3.0
    driver.worker("slow", credit_count=2)
    driver.worker("fast", credit_count=2)

    chosen = [only(effects.PersistAttempt, driver.queue(f"r{number}")).worker_id for number in range(2)]

    assert chosen == ["fast", "fast"]


def test_beyond_the_largest_profiled_batch_a_worker_that_idles_costs_less(driver: Driver) -> None:
    driver.profile("m", (1, 1.0))
    for name in ("w1", "w2"):
        driver.worker(name, credit_count=2)

    chosen = [only(effects.PersistAttempt, driver.queue(f"r{number}")).worker_id for number in range(2)]

    assert chosen == ["w1", "w2"]


def test_credits_and_throughput_follow_the_workers_of_a_pool(driver: Driver) -> None:
    driver.profile("m", (1, 1.0), (4, 2.0))
    driver.worker("w1", credit_count=4)
    driver.worker("w2", credit_count=1)
    pool = driver.dataplane.state.pools["m"]
    assert (pool.credit_count, pool.throughput) == (5, pytest.approx(4 / 2.0 + 1.0))

    driver.worker("w1", credit_count=4, draining=True)
    driver.send(events.WorkerLost("w2", 1))

    assert (pool.credit_count, pool.throughput) == (0, 0.0)


def test_an_attempt_that_was_given_up_early_says_nothing_of_a_device_known_to_be_slower(driver: Driver) -> None:
    """A picture of 3 s instead of 1 makes the pool 1.4 times slower and its worker 3 times; then one is given up after
    a second, as long as it should take."""
    driver.profile()
    driver.worker()
    run = driver.run("r1")
    driver.now += 3.0
    driver.send(events.AttemptFinished("r1", run.fencing_token))
    state = driver.dataplane.state
    before = state.pools["m"].speed.slowdown, state.workers["w1"].slowdown

    driver.run("r2", deadline=driver.now + 1.0)
    driver.now += 1.0
    driver.send(events.TimePassed())

    assert before == (pytest.approx(1.4), pytest.approx(3.0))
    assert (state.pools["m"].speed.slowdown, state.workers["w1"].slowdown) == before


def test_a_yield_that_is_told_twice_takes_nobody_else_s_end(driver: Driver) -> None:
    driver.profile("m", (2, 10.0))
    driver.worker(credit_count=2)
    first = driver.run("r1")
    driver.now += 1.0
    driver.run("r2")
    ends = driver.dataplane.state.pools["m"].ends[:]

    for _ in range(2):
        driver.send(events.AttemptYielded("r1", first.fencing_token))

    assert len(ends) == 2
    assert driver.dataplane.state.pools["m"].ends == ends[1:]


def test_a_worker_of_which_nothing_is_known_is_as_fast_as_profiled(driver: Driver) -> None:
    driver.profile()
    driver.worker("known")
    driver.dataplane.state.workers["known"].slowdown = 1.5
    driver.worker("known", credit_count=2)
    driver.worker("new")

    assert only(effects.PersistAttempt, driver.queue("r1")).worker_id == "new"


def test_a_profile_that_comes_later_is_that_of_the_workers_that_are_there(driver: Driver) -> None:
    """What a worker was measured against before says nothing of the new one."""
    driver.worker("w1", credit_count=4)
    worker, pool = driver.dataplane.state.workers["w1"], driver.dataplane.state.pools["m"]
    worker.slowdown = 3.0

    driver.profile("m", (1, 1.0), (4, 2.0))

    assert (worker.slowdown, pool.throughput) == (None, 4 / 2.0)


@pytest.mark.parametrize(("seconds", "slowdown"), [(0.0, 0.8), (0.5, 0.9), (1.5, 1.1)])
def test_a_fifth_of_the_newest_picture_is_learnt_however_quick_it_was(
    driver: Driver, seconds: float, slowdown: float
) -> None:
    """Profiled as 1 s."""
    driver.profile()
    driver.worker()
    run = driver.run()
    driver.now += seconds

    driver.send(events.AttemptFinished("r1", run.fencing_token))

    assert driver.dataplane.state.pools["m"].speed.slowdown == pytest.approx(slowdown)


def test_what_is_learnt_is_of_the_work_that_was_really_done(driver: Driver) -> None:
    """Profiled as 1 s a picture. It took 2 s, but of twice the work: its start could not be used."""
    driver.profile()
    driver.worker()
    run = driver.run()
    driver.now += 2.0
    work = driver.dataplane.state.requests["r1"].work

    driver.send(events.AttemptFinished("r1", run.fencing_token, painted_work=2 * work))

    assert driver.dataplane.state.pools["m"].speed.slowdown == pytest.approx(1.0)


def test_a_pool_that_lost_all_its_workers_gets_nothing_through(driver: Driver) -> None:
    """0.1 + 0.2 - 0.1 - 0.2 is not 0."""
    driver.profile("m", (1, 10.0))
    driver.worker("w1", credit_count=1)
    driver.worker("w2", credit_count=2)

    for name in ("w1", "w2"):
        driver.send(events.WorkerLost(name, 1))

    assert driver.dataplane.state.pools["m"].throughput == 0.0


def test_what_was_learnt_stays_when_the_same_profile_is_told_again(driver: Driver) -> None:
    driver.profile()
    driver.dataplane.state.pools["m"].speed.learn(2.0)

    driver.profile()

    assert driver.dataplane.state.pools["m"].speed.slowdown == pytest.approx(1.2)


def test_an_attempt_is_expected_to_end_as_in_a_full_batch(driver: Driver) -> None:
    driver.profile("m", (1, 10.0), (2, 12.0), (4, 20.0))
    driver.worker("w1", credit_count=1)
    driver.run("r1")
    driver.worker("w4", credit_count=4)
    driver.run("r2")

    assert driver.dataplane.state.pools["m"].ends == [driver.now + 10.0, driver.now + 20.0]


def test_who_takes_a_place_beyond_the_credits_is_expected_to_end_as_in_that_larger_batch(driver: Driver) -> None:
    driver.profile("m", (1, 10.0), (2, 12.0))
    driver.worker("w1", credit_count=1, reserve_count=1)
    driver.run("aged", deadline=driver.now + 100.0)

    driver.run("urgent", deadline=driver.now + 50.0)

    assert driver.dataplane.state.pools["m"].ends == [driver.now + 10.0, driver.now + 12.0]


def test_what_waited_for_a_place_that_was_yielded_says_nothing_of_the_device(driver: Driver) -> None:
    """Each picture takes the second that it was profiled as, and comes half a second before its place is free."""
    driver.profile()
    driver.worker(credit_count=1)
    run = driver.run("r0")
    for number in range(1, 6):
        driver.now += 0.5
        driver.send(events.AttemptYielded(f"r{number - 1}", run.fencing_token))
        following = driver.run(f"r{number}")
        driver.now += 0.5
        driver.send(events.AttemptFinished(f"r{number - 1}", run.fencing_token))
        driver.send(events.AttemptStarted(f"r{number}", following.fencing_token))
        run = following

    assert driver.dataplane.state.workers["w1"].slowdown == pytest.approx(1.0)
    assert driver.dataplane.state.pools["m"].ends == [pytest.approx(driver.now + 1.0)]


def test_whoever_took_a_free_place_is_timed_from_then_on(driver: Driver) -> None:
    """A worker that is slow to begin is slow."""
    driver.profile()
    driver.worker(credit_count=2)
    run = driver.run("r1")
    driver.now += 1.0
    driver.send(events.AttemptStarted("r1", run.fencing_token))
    driver.now += 1.0
    driver.send(events.AttemptFinished("r1", run.fencing_token))

    assert driver.dataplane.state.workers["w1"].slowdown == pytest.approx(2.0)


def test_a_place_yielded_before_any_news_of_the_start_ends_once(driver: Driver) -> None:
    driver.profile()
    driver.worker(credit_count=1)
    first = driver.run("r1")
    driver.send(events.AttemptYielded("r1", first.fencing_token))
    second = driver.run("r2")

    driver.send(events.AttemptYielded("r2", second.fencing_token))
    driver.send(events.AttemptStarted("r2", second.fencing_token))

    assert driver.dataplane.state.pools["m"].ends == []
