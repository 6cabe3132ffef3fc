"""Spare lanes, pairs and standbys."""

from typing import Any

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.events import FailureKind
from pentimento.domain.fleet import Capability, Plan
from pentimento.domain.generation import PlanVersion
from pentimento.policies.adapter_needs import AdapterHoldings, AdapterNeeds
from tests.unit.dataplane.driver import Driver, kinds, only

LARGE = (events.RouteOption("large", "dl", 3.0),)


def large_worker(driver: Driver, **changes: object) -> list[effects.Effect]:
    return driver.worker("large", model="large", model_digest="dl", **changes)  # type: ignore[arg-type]


def test_a_large_worker_takes_hits_when_it_has_no_misses(driver: Driver) -> None:
    driver.queue("hit", spare=LARGE)

    attempt = only(effects.PersistAttempt, large_worker(driver))

    assert (attempt.request_id, attempt.option) == ("hit", 1)
    assert driver.dataplane.state.requests["hit"].work == 3.0
    assert driver.worker("small") == []


def test_a_large_worker_takes_its_own_first(driver: Driver) -> None:
    driver.queue("hit", spare=LARGE)
    driver.queue("miss", pool="large", digest="dl")

    assert only(effects.PersistAttempt, large_worker(driver)).request_id == "miss"


def test_small_workers_come_before_spare_ones(driver: Driver) -> None:
    large_worker(driver)
    driver.worker("small")

    attempt = only(effects.PersistAttempt, driver.queue("hit", spare=LARGE))

    assert (attempt.worker_id, attempt.option) == ("small", 0)


def test_the_lane_of_the_first_attempt_is_that_of_all(driver: Driver) -> None:
    driver.queue("hit", spare=LARGE)
    run = driver.start(large_worker(driver))
    driver.worker("small")

    assert kinds(driver.send(events.AttemptFailed("hit", run.fencing_token, FailureKind.NO_CREDIT))) == [
        effects.ReleaseGrant
    ]
    assert only(effects.PersistAttempt, large_worker(driver)).attempt_number == 2


def test_a_pair_takes_a_credit_of_both(driver: Driver) -> None:
    driver.worker("w1", pairable=True)
    driver.worker("w2", pairable=True)
    persist = only(effects.PersistAttempt, driver.queue("r1", pair=True))

    started = driver.send(events.AttemptPersisted("r1", persist.fencing_token))

    reserved = only(effects.ReservePair, started)
    assert kinds(started) == [effects.ReservePair, effects.Execute]
    assert {reserved.worker_id, reserved.peer_id} == {"w1", "w2"}
    assert driver.queue("r2") == []
    after = driver.send(events.AttemptFinished("r1", persist.fencing_token))
    assert only(effects.PersistAttempt, after).request_id == "r2"


def test_a_pair_is_not_worth_a_busy_worker(driver: Driver) -> None:
    driver.worker("w1", credit_count=2, pairable=True)
    driver.run("other")
    driver.worker("w2", pairable=True)
    persist = only(effects.PersistAttempt, driver.queue("r1", pair=True))

    assert effects.ReservePair not in kinds(driver.send(events.AttemptPersisted("r1", persist.fencing_token)))


def test_a_worker_goes_on_alone_when_its_peer_is_lost(driver: Driver) -> None:
    driver.worker("w1", pairable=True)
    driver.worker("w2", pairable=True)
    persist = only(effects.PersistAttempt, driver.queue("r1", pair=True))
    reserved = only(effects.ReservePair, driver.send(events.AttemptPersisted("r1", persist.fencing_token)))

    assert driver.send(events.WorkerLost(reserved.peer_id, 1)) == []

    assert driver.dataplane.state.requests["r1"].losses == 0
    assert effects.CommitResult in kinds(driver.send(events.AttemptFinished("r1", persist.fencing_token)))


@pytest.mark.parametrize(("remaining_s", "paired"), [(19.0, True), (21.0, False)])
def test_a_pair_is_for_who_has_little_time_left(remaining_s: float, paired: bool) -> None:
    driver = pairing_driver(DataplaneSettings(pair_tight_share=2.0))
    driver.profile("m", (1, 10.0))

    assert (peer_of(driver, driver.now + remaining_s) is not None) is paired


def test_a_pair_whose_gain_is_not_known_waits_for_nobodys_deadline() -> None:
    assert peer_of(pairing_driver(DataplaneSettings(pair_tight_share=2.0)), 101.0) is None


def test_a_peer_has_what_the_request_needs() -> None:
    driver = Driver()
    able = AdapterHoldings(frozenset({Capability.LORA}), frozenset({"neon"}), frozenset())
    driver.worker("w1", pairable=True, holdings=able)
    driver.worker("w2", pairable=True)
    needs = AdapterNeeds(frozenset({Capability.LORA}), frozenset({"neon"}))

    assert peer_of(driver, needs=needs) is None
    driver.worker("w3", pairable=True, holdings=able)
    assert peer_of(driver, request_id="r2", needs=needs) is None, "w1 paints r1"


def test_what_a_pair_took_is_not_what_one_worker_takes() -> None:
    driver = pairing_driver()
    driver.profile("m", (1, 10.0))
    token = only(effects.PersistAttempt, driver.queue("r1", pair=True)).fencing_token
    driver.send(events.AttemptPersisted("r1", token))
    driver.now += 5.0

    driver.send(events.AttemptFinished("r1", token))

    assert driver.dataplane.state.pools["m"].speed.slowdown == 1.0


def pairing_driver(settings: DataplaneSettings | None = None) -> Driver:
    driver = Driver(settings)
    driver.worker("w1", pairable=True)
    driver.worker("w2", pairable=True)
    return driver


def peer_of(driver: Driver, deadline: float = 1000.0, request_id: str = "r1", **arrival: Any) -> str | None:
    """Who is reserved beside w1, which the first request goes to."""
    queued = driver.queue(request_id, deadline, pair=True, **arrival)
    token = only(effects.PersistAttempt, queued).fencing_token
    started = driver.send(events.AttemptPersisted(request_id, token))
    pairs = [effect.peer_id for effect in started if isinstance(effect, effects.ReservePair)]
    return pairs[0] if pairs else None


def test_a_standby_takes_nothing_before_it_took_over() -> None:
    driver = Driver(epoch=0)
    assert only(effects.Reject, driver.arrive("r1")).reason == "STANDBY"

    driver.send(events.TookOver(7))
    driver.worker()

    assert driver.run("r1").fencing_token == 7 << 20


def test_an_older_epoch_takes_nothing_over() -> None:
    driver = Driver(epoch=7)

    driver.send(events.TookOver(3))

    assert driver.dataplane.state.epoch == 7


def test_of_two_workers_under_one_name_the_later_start_counts(driver: Driver) -> None:
    driver.worker("w1", generation=5)
    driver.run("r1")

    assert driver.worker("w1", generation=4) == []
    assert driver.dataplane.state.workers["w1"].worker_generation == 5


def test_a_plan_that_makes_no_sense_changes_nothing(driver: Driver) -> None:
    driver.send(events.PlanReceived(Plan(PlanVersion(1, 1), admission_rate=float("nan"))))

    assert driver.dataplane.state.plan is None
    assert driver.dataplane.state.counters.refused_plans == 1


def test_a_worker_that_lies_about_its_credits_is_bounded(driver: Driver) -> None:
    driver.worker("w1", credit_count=2**31)
    driver.worker("w2", credit_count=-5)

    workers = driver.dataplane.state.workers
    assert (workers["w1"].credit_count, workers["w2"].credit_count) == (4096, 0)


def test_a_worker_lost_twice_is_remembered_for_its_whole_time(driver: Driver) -> None:
    """Its first absence's timer must not forget it in its second: it may still run what was taken away."""
    driver.worker()
    driver.send(events.WorkerLost("w1", 1))
    driver.now += 20.0
    driver.worker()
    driver.send(events.WorkerLost("w1", 1))
    driver.now += 15.0

    driver.send(events.TimePassed())

    assert "w1" in driver.dataplane.state.workers


def test_what_a_forgotten_worker_still_runs_takes_its_credit(driver: Driver) -> None:
    driver.worker()
    run = driver.run("r1")
    driver.send(events.WorkerLost("w1", 1))
    driver.now += 31.0
    driver.send(events.TimePassed())
    assert not driver.dataplane.state.workers

    back = driver.worker("w1", running=frozenset({("r1", run.fencing_token)}))

    assert kinds(back) == [effects.StopAttempt]
