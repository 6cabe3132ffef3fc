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


def test_profile_that_makes_no_sense_is_left_out(driver: Driver) -> None:
    for profile in (
        SpeedProfile("m", ()),
        SpeedProfile("m", ((2, 1.0), (1, 1.0))),
        SpeedProfile("m", ((0, 1.0),)),
        SpeedProfile("m", ((1, math.nan),)),
        SpeedProfile("m", ((1, -1.0),)),
        SpeedProfile("m", ((1, 1.0),), fixed_s=math.inf),
    ):
        assert not is_sane(profile)
        driver.send(events.ProfilesReceived((profile,)))
        assert not driver.dataplane.state.profiles
    assert Speed().seconds(1.0, 1) is None


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


@pytest.mark.parametrize(
    ("spread", "after_s", "deadline_s", "kind"),
    [
        (0.2, 0.0, 31.0, effects.Reject),
        (0.2, 0.0, 33.0, effects.PersistAccepted),
        (0.0, 0.0, 29.0, effects.Reject),
        (0.0, 10.0, 21.0, effects.PersistAccepted),  # the credit is about to come back
    ],
)
def test_admission_predicts_ends_with_margin(
    driver: Driver, spread: float, after_s: float, deadline_s: float, kind: type
) -> None:
    """Ten seconds each for the one that runs, one that waits, and itself, which may take two more."""
    driver.profile("m", (1, 10.0))
    driver.worker()
    driver.dataplane.state.pools["m"].speed.spread = spread or driver.dataplane.state.pools["m"].speed.spread
    driver.run("running")
    driver.queue("waiting")
    driver.now += after_s

    assert kinds(driver.arrive("r", deadline=driver.now + deadline_s))[0] is kind


@pytest.mark.parametrize(
    ("profile", "workers", "chosen"),
    [
        (((1, 1.0), (2, 1.2)), {"slow": (3.0, 2), "fast": (None, 2)}, ["fast", "fast"]),
        (((1, 1.0),), {"w1": (None, 2), "w2": (None, 2)}, ["w1", "w2"]),
        (((1, 1.0),), {"known": (1.5, 2), "new": (None, 1)}, ["new"]),
    ],
    ids=["larger batch of a fast one", "beyond the largest batch", "as fast as profiled"],
)
def test_request_goes_where_it_costs_least(
    driver: Driver,
    profile: tuple[tuple[int, float], ...],
    workers: dict[str, tuple[float | None, int]],
    chosen: list[str],
) -> None:
    driver.profile("m", *profile)
    for name, (slowdown, credit_count) in workers.items():
        driver.worker(name)
        driver.dataplane.state.workers[name].slowdown = slowdown
        driver.worker(name, credit_count=credit_count)

    found = [only(effects.PersistAttempt, driver.queue(f"r{number}")).worker_id for number in range(len(chosen))]

    assert found == chosen


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


def test_a_profile_that_comes_later_is_that_of_the_workers_that_are_there(driver: Driver) -> None:
    """What a worker was measured against before says nothing of the new one."""
    driver.worker("w1", credit_count=4)
    worker, pool = driver.dataplane.state.workers["w1"], driver.dataplane.state.pools["m"]
    worker.slowdown = 3.0

    driver.profile("m", (1, 1.0), (4, 2.0))

    assert (worker.slowdown, pool.throughput) == (None, 4 / 2.0)


@pytest.mark.parametrize(
    ("seconds", "times_work", "slowdown"), [(0.0, None, 0.8), (0.5, None, 0.9), (1.5, None, 1.1), (2.0, 2, 1.0)]
)
def test_speed_learns_a_fifth_of_the_newest_image(
    driver: Driver, seconds: float, times_work: int | None, slowdown: float
) -> None:
    """Profiled as 1 s. One did twice the work: its start could not be used."""
    driver.profile()
    driver.worker()
    run = driver.run()
    driver.now += seconds
    work = driver.dataplane.state.requests["r1"].work
    done = {} if times_work is None else {"painted_work": times_work * work}

    driver.send(events.AttemptFinished("r1", run.fencing_token, **done))

    assert driver.dataplane.state.pools["m"].speed.slowdown == pytest.approx(slowdown)


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


def test_attempt_is_expected_to_end_as_in_its_batch(driver: Driver) -> None:
    """In a full one, or one larger where it takes a place beyond the credits."""
    driver.profile("m", (1, 10.0), (2, 12.0), (4, 20.0))
    driver.worker("w1", credit_count=1, reserve_count=1)
    driver.run("r1", deadline=driver.now + 100.0)
    driver.run("urgent", deadline=driver.now + 50.0)
    driver.worker("w4", credit_count=4)
    driver.run("r2")

    assert driver.dataplane.state.pools["m"].ends == [driver.now + seconds for seconds in (10.0, 12.0, 20.0)]
