"""A pool's speed comes from its profile, and is corrected by the time of its attempts."""

import math

import pytest

from pentimento.dataplane import effects, events
from pentimento.dataplane.events import SpeedProfile
from pentimento.dataplane.speed import Speed, is_sane
from tests.unit.dataplane.driver import Driver, kinds, only, play

Profile = tuple[tuple[int, float], ...]
A_SECOND: Profile = ((1, 1.0),)


def test_speed_is_linear_between_measured_batch_sizes() -> None:
    speed = Speed(SpeedProfile("m", ((2, 1.0), (4, 2.0), (8, 2.4)), fixed_s=0.5))

    assert [speed.seconds_per_work(batch) for batch in (1, 2, 3, 4, 6, 8, 99)] == pytest.approx(
        [1.0, 1.0, 1.5, 2.0, 2.2, 2.4, 2.4]
    )
    assert speed.seconds(10.0, 4) == pytest.approx(20.5)
    assert Speed().seconds(1.0, 1) is None


def test_invalid_profile_is_skipped(driver: Driver) -> None:
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


@pytest.mark.parametrize("steps", ["run r1, wait 3, finish r1", "run r1 within=3, wait 3, fail r1 STOPPED"])
def test_attempts_of_three_seconds_correct_a_profile_of_one(driver: Driver, steps: str) -> None:
    """It also holds if no attempt finishes before its deadline."""
    driver.profile()
    driver.worker()
    for number in range(30):
        play(driver, steps.replace("r1", f"r{number}"))

    assert driver.dataplane.state.pools["m"].speed.slowdown == pytest.approx(3.0, rel=0.01)


def test_margin_is_the_spread_of_attempts() -> None:
    speed = Speed(SpeedProfile("m", A_SECOND))
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
    """Ten seconds each for the running request, the waiting one, and itself, which may take two more."""
    driver.profile("m", (1, 10.0))
    driver.worker()
    driver.dataplane.state.pools["m"].speed.spread = spread
    play(driver, "run running, queue waiting")
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
    driver: Driver, profile: Profile, workers: dict[str, tuple[float | None, int]], chosen: list[str]
) -> None:
    driver.profile("m", *profile)
    for name, (slowdown, credit_count) in workers.items():
        driver.worker(name)
        driver.dataplane.state.workers[name].slowdown = slowdown
        driver.worker(name, credit_count=credit_count)

    found = [only(effects.PersistAttempt, driver.queue(f"r{number}")).worker_id for number in range(len(chosen))]

    assert found == chosen


@pytest.mark.parametrize(
    ("script", "pool", "worker"),
    [
        # A fifth of the newest image.
        ("worker w1, run r1, finish r1", 0.8, 0.0),
        ("worker w1, run r1, wait 0.5, finish r1", 0.9, 0.5),
        ("worker w1, run r1, wait 1.5, finish r1", 1.1, 1.5),
        # An attempt that was abandoned early does not change the estimate of a device known to be slower.
        ("worker w1, run r1, wait 3, finish r1, run r2 within=1, wait 1", 1.4, 3.0),
        # A worker that is slow to begin is slow.
        ("worker w1 credit_count=2, run r1, wait 1, begin r1, wait 1, finish r1", 1.2, 2.0),
        # An attempt that waited for a yielded place is timed from its start.
        ("worker w1, run r1, wait 0.5, yield r1, run r2, wait 0.5, finish r1, begin r2, wait 1, finish r2", 1.0, 1.0),
    ],
)
def test_slowdown_follows_time_of_attempts(driver: Driver, script: str, pool: float, worker: float) -> None:
    driver.profile()

    play(driver, script)

    state = driver.dataplane.state
    assert state.pools["m"].speed.slowdown == pytest.approx(pool)
    assert state.workers["w1"].slowdown == pytest.approx(worker)


def test_slowdown_counts_the_work_that_ran(driver: Driver) -> None:
    driver.profile()
    driver.worker()
    run = driver.run()
    driver.now += 2.0

    driver.send(events.AttemptFinished("r1", run.fencing_token, painted_work=2.0))

    assert driver.dataplane.state.pools["m"].speed.slowdown == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("profile", "script", "ends"),
    [
        (((2, 10.0),), "worker w1 credit_count=2, run r1, wait 1, run r2, yield r1", [10.0]),
        (((2, 10.0),), "worker w1 credit_count=2, run r1, wait 1, run r2, yield r1, yield r1", [10.0]),
        (A_SECOND, "worker w1, run r1, yield r1, run r2, yield r2, begin r2", []),
        (A_SECOND, "worker w1, run r1, wait 0.5, yield r1, run r2, wait 0.5, finish r1, begin r2", [1.0]),
        # In a full batch, or in one larger by a place of the reserve.
        (
            ((1, 10.0), (2, 12.0), (4, 20.0)),
            "worker w1 reserve_count=1, run r1 within=100, run urgent within=50, worker w4 credit_count=4, run r2",
            [10.0, 12.0, 20.0],
        ),
    ],
)
def test_credits_are_expected_at_ends_of_attempts(
    driver: Driver, profile: Profile, script: str, ends: list[float]
) -> None:
    driver.profile("m", *profile)

    play(driver, script)

    assert [end - driver.now for end in driver.dataplane.state.pools["m"].ends] == pytest.approx(ends)


def test_faster_worker_gets_requests_first(driver: Driver) -> None:
    driver.profile()

    play(driver, "worker slow, worker fast, run r1, wait 4, finish r1, worker slow, run r2, wait 1, finish r2")

    assert play(driver, "worker fast, queue r3") == "r3 to fast"


def test_credits_and_throughput_follow_the_workers_of_a_pool(driver: Driver) -> None:
    driver.profile("m", (1, 1.0), (4, 2.0))
    driver.worker("w1", credit_count=4)
    driver.worker("w2", credit_count=1)
    pool = driver.dataplane.state.pools["m"]
    assert (pool.credit_count, pool.throughput) == (5, pytest.approx(4 / 2.0 + 1.0))

    play(driver, "worker w1 credit_count=4 draining, lose w2")

    # Exactly 0, although 0.1 + 0.2 - 0.1 - 0.2 is not.
    assert (pool.credit_count, pool.throughput) == (0, 0.0)


def test_new_profile_applies_to_workers_and_repeated_one_changes_nothing(driver: Driver) -> None:
    driver.worker("w1", credit_count=4)
    worker, pool = driver.dataplane.state.workers["w1"], driver.dataplane.state.pools["m"]
    worker.slowdown = 3.0

    driver.profile("m", (1, 1.0), (4, 2.0))
    assert (worker.slowdown, pool.throughput) == (None, 4 / 2.0)

    pool.speed.learn(2.0)
    driver.profile("m", (1, 1.0), (4, 2.0))
    assert pool.speed.slowdown == pytest.approx(1.2)
