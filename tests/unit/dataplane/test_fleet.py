"""Workers come and go by their reports; a plan's registered digests decide which count."""

import pytest

from pentimento.dataplane import effects, events
from pentimento.domain.fleet import Plan, RegisteredDigest
from pentimento.domain.generation import PlanVersion
from tests.unit.dataplane.driver import Driver, kinds, play


@pytest.mark.parametrize(
    "script", ["lose w1, worker w1 generation=2, wait 30", "worker w1 generation=2, lose w1 1", "lose unknown"]
)
def test_worker_stays_after_its_return_and_others_losses(driver: Driver, script: str) -> None:
    play(driver, f"worker w1, {script}")

    assert driver.dataplane.state.workers["w1"].connected


def registered(sequence: int, digest: str) -> events.PlanReceived:
    return events.PlanReceived(Plan(PlanVersion(1, sequence), registered=(RegisteredDigest("m", digest),)))


def test_worker_with_other_digest_gets_no_request(driver: Driver) -> None:
    driver.send(registered(1, "right"))
    driver.worker(model_digest="d")
    driver.queue("r1", 100.0, digest="d", pool="m")

    assert driver.dataplane.state.pool("m").workers == {}

    now = driver.send(registered(2, "d"))
    assert effects.PersistAttempt in kinds(now), "it is the registered one by now"


def test_plan_removes_worker_with_other_digest(driver: Driver) -> None:
    driver.worker(model_digest="d")
    driver.send(registered(1, "right"))

    assert driver.dataplane.state.pool("m").workers == {}
    assert effects.PersistAttempt not in kinds(driver.queue("r1", 100.0, digest="d", pool="m"))


def test_lost_worker_may_still_run_its_attempts(driver: Driver) -> None:
    driver.worker(credit_count=2)
    tokens = {name: driver.run(name).fencing_token for name in ("r1", "r2")}

    driver.send(events.WorkerLost("w1", 1))

    assert driver.dataplane.state.workers["w1"].abandoned == set(tokens.items())


def test_new_profile_decides_cheapest_worker_at_once(driver: Driver) -> None:
    """Without a profile the cost is the number of running requests, with one the seconds of a batch one larger."""
    driver.worker("w1", credit_count=2)
    driver.run("r1")
    driver.worker("w2", credit_count=2)
    ready = driver.dataplane.state.lanes["m", "d"].ready
    before = {name: cost for name, (cost, _) in ready.costs().items()}

    driver.profile("m", (1, 3.0), (2, 5.0))

    assert before == {"w1": 1.0, "w2": 0.0}
    assert {name: cost for name, (cost, _) in ready.costs().items()} == {"w1": 5.0, "w2": 3.0}
