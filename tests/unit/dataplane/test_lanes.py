"""Spare lanes, pairs, standbys, and workers that return."""

from typing import Any

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.domain.fleet import Plan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.adapter_needs import AdapterNeeds
from tests.unit.dataplane.driver import TAKES_LORAS, Driver, kinds, only, play

LARGE = "worker large model=large"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f"queue hit spare=large, {LARGE}", "hit to large"),
        (f"queue hit spare=large, {LARGE}, worker small", ""),
        (f"queue hit spare=large, queue miss pool=large, {LARGE}", "miss to large"),
        (f"{LARGE}, worker small, queue hit spare=large", "hit to small"),
        # The lane of the first attempt is the lane of all.
        (f"{LARGE}, run hit spare=large, worker small, fail hit NO_CREDIT", "ReleaseGrant hit"),
        (f"{LARGE}, run hit spare=large, worker small, fail hit NO_CREDIT, {LARGE}", "hit to large"),
    ],
)
def test_spare_lane_takes_request_if_it_has_none(driver: Driver, script: str, said: str) -> None:
    assert play(driver, script) == said


def test_spare_lane_sets_work_and_option(driver: Driver) -> None:
    driver.queue("hit", spare=(events.RouteOption("large", "dl", 3.0),))

    attempt = only(effects.PersistAttempt, driver.worker("large", model="large", model_digest="dl"))

    assert attempt.option == 1
    assert driver.dataplane.state.requests["hit"].work == 3.0


def pairing_driver(settings: DataplaneSettings | None = None) -> Driver:
    driver = Driver(settings)
    play(driver, "worker w1 pairable, worker w2 pairable")
    return driver


def peer_of(driver: Driver, deadline: float = 1000.0, request_id: str = "r1", **arrival: Any) -> str | None:
    """Return the worker that is reserved for the other half of the guidance."""
    token = only(effects.PersistAttempt, driver.queue(request_id, deadline, pair=True, **arrival)).fencing_token
    started = driver.send(events.AttemptPersisted(request_id, token))
    return next((effect.peer_id for effect in started if isinstance(effect, effects.ReservePair)), None)


def test_pair_takes_a_credit_of_both_workers() -> None:
    driver = pairing_driver()
    persist = only(effects.PersistAttempt, driver.queue("r1", pair=True))

    started = driver.send(events.AttemptPersisted("r1", persist.fencing_token))

    assert kinds(started) == [effects.ReservePair, effects.Execute]
    reserved = only(effects.ReservePair, started)
    assert (reserved.worker_id, reserved.peer_id) == ("w1", "w2")
    assert play(driver, "queue r2") == ""
    assert play(driver, "finish r1") == "CommitResult r1, r2 to w2"


def test_pair_continues_alone_after_loss_of_peer() -> None:
    driver = pairing_driver()
    assert peer_of(driver) == "w2"

    assert play(driver, "lose w2") == ""

    assert driver.dataplane.state.requests["r1"].losses == 0
    assert play(driver, "finish r1") == "CommitResult r1"


@pytest.mark.parametrize(
    ("profile", "remaining_s", "peer"),
    [((1, 10.0), 19.0, "w2"), ((1, 10.0), 21.0, None), (None, 1.0, None)],
    ids=["little time", "time", "unknown gain"],
)
def test_pair_needs_tight_deadline(profile: tuple[int, float] | None, remaining_s: float, peer: str | None) -> None:
    driver = pairing_driver(DataplaneSettings(pair_tight_share=2.0))
    if profile is not None:
        driver.profile("m", profile)

    assert peer_of(driver, driver.now + remaining_s) == peer


@pytest.mark.parametrize(
    "script",
    [
        # The second worker is busy, or a request waits that it may get.
        "worker w1 pairable credit_count=2, run other, worker w2 pairable",
        "worker w1 pairable, worker w2 pairable, queue styled needs=neon",
    ],
)
def test_pair_needs_an_idle_worker_that_no_request_waits_for(driver: Driver, script: str) -> None:
    play(driver, script)

    assert peer_of(driver) is None


def test_peer_has_the_requests_lora(driver: Driver) -> None:
    play(driver, "worker w1 pairable has=neon, worker w2 pairable")

    assert peer_of(driver, needs=AdapterNeeds(TAKES_LORAS, frozenset({"neon"}))) is None


def test_time_of_pair_is_not_the_speed_of_one_worker() -> None:
    driver = pairing_driver()
    driver.profile("m", (1, 10.0))
    peer_of(driver)

    play(driver, "wait 5, finish r1")

    assert driver.dataplane.state.pools["m"].speed.slowdown == 1.0


def test_standby_rejects_until_it_takes_over_with_a_newer_epoch() -> None:
    driver = Driver(epoch=0)
    assert only(effects.Reject, driver.arrive("r1")).reason == "STANDBY"

    for epoch in (7, 3):
        driver.send(events.TookOver(epoch))
    driver.worker()

    assert driver.dataplane.state.epoch == 7
    assert driver.run("r1").fencing_token == 7 << 20


def test_later_start_of_worker_wins_over_earlier(driver: Driver) -> None:
    driver.worker("w1", generation=5)
    driver.run("r1")

    assert driver.worker("w1", generation=4) == []
    assert driver.dataplane.state.workers["w1"].worker_generation == 5


def test_invalid_plan_is_counted_and_not_adopted(driver: Driver) -> None:
    for sequence in (1, 2):
        driver.send(events.PlanReceived(Plan(PlanVersion(1, sequence), admission_rate=float("nan"))))

    assert driver.dataplane.state.plan is None
    assert driver.dataplane.state.counters.refused_plans == 2


def test_reported_credits_are_bounded(driver: Driver) -> None:
    driver.worker("w1", credit_count=2**31)
    driver.worker("w2", credit_count=-5)

    workers = driver.dataplane.state.workers
    assert (workers["w1"].credit_count, workers["w2"].credit_count) == (4096, 0)


def test_lost_worker_is_forgotten_after_its_last_absence(driver: Driver) -> None:
    """Until then it may still run the attempts taken from it; the timer of its first absence does not count."""
    play(driver, "worker w1, lose w1, wait 20, worker w1, lose w1, wait 15")
    assert "w1" in driver.dataplane.state.workers

    play(driver, "wait 15")
    assert "w1" not in driver.dataplane.state.workers


def test_forgotten_workers_running_attempt_is_stopped(driver: Driver) -> None:
    play(driver, "worker w1, run r1, lose w1, wait 31")
    assert not driver.dataplane.state.workers

    running = frozenset({driver.dataplane.state.requests["r1"].attempt_key})

    assert kinds(driver.worker("w1", running=running)) == [effects.StopAttempt]
