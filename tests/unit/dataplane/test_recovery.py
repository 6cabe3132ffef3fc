"""A frontdoor recovers the unfinished requests of an earlier one."""

from typing import Any

import pytest

from pentimento.dataplane import effects, events
from tests.unit.dataplane.driver import Driver, kinds, only, play

ROUTED: dict[str, Any] = {"route_pinned": True, "model_digest": "d"}
RUNNING: dict[str, Any] = {**ROUTED, "attempt_number": 1, "fencing_token": 7, "worker_id": "w1"}


def recover(driver: Driver, request_id: str = "r1", deadline: float = 1000.0, **changes: Any) -> list[effects.Effect]:
    one = events.RecoveredRequest(request_id, "t", "m", 1.0, deadline, **changes)
    return driver.send(events.Recovered((one,)))


def test_attempt_of_unknown_request_is_stopped_and_uses_a_credit() -> None:
    driver = Driver(epoch=2)

    assert driver.worker("w1", running=frozenset({("r0", 1)})) == [effects.StopAttempt("r0", 1, "w1")]

    assert play(driver, "queue r1") == ""
    assert play(driver, "worker w1") == "r1 to w1"


def test_request_is_recovered_once_where_it_was(driver: Driver) -> None:
    assert kinds(recover(driver)) == [effects.PrepareRoute, effects.ResolveRoute]
    assert recover(driver) == []

    assert recover(driver, "routed", **ROUTED) == []
    assert play(driver, "worker w1") == "routed to w1"
    recover(driver, "late", deadline=99.0, **ROUTED)
    ended = only(effects.PersistEnd, driver.send(events.TimePassed()))
    assert (ended.request_id, ended.end) == ("late", effects.End.EXPIRED)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("worker w1", "Attach r1"),
        ("worker w1, queue r2", ""),  # it uses the credit
        ("worker w1, finish r1", "CommitResult r1"),
        ("worker w1, worker w2, fail r1 GONE", "ReleaseGrant r1, r1 to w2"),
        # Its worker has three seconds to return; then it runs again, before requests that never ran.
        ("worker w2, wait 2.9", ""),
        ("worker w2, wait 3", "r1 to w2"),
        ("worker w2, wait 3, worker w1", ""),
        ("queue fresh within=400, wait 3, worker w2", "r1 to w2"),
        ("cancel r1", "StopAttempt r1, PersistEnd r1"),
        ("cancel r1, worker w1", ""),
    ],
)
def test_running_attempt_waits_for_its_worker(driver: Driver, script: str, said: str) -> None:
    recover(driver, **RUNNING)

    assert play(driver, script) == said


def test_attempt_is_attached_to_present_worker_with_its_token() -> None:
    driver = Driver()
    driver.worker("w1")

    assert recover(driver, **RUNNING) == [effects.Attach("r1", 1, 7, "w1")]
    play(driver, "worker w2")
    rerun = only(effects.PersistAttempt, driver.send(events.AttemptFailed("r1", 7, events.FailureKind.GONE)))
    assert (rerun.fencing_token > 7, rerun.attempt_number) == (True, 2)
    assert not driver.dataplane.state.orphans


def test_orphan_that_runs_again_leaves_others_of_its_worker_waiting(driver: Driver) -> None:
    recover(driver, "first", **RUNNING)
    driver.now += 2.0
    recover(driver, "second", **{**RUNNING, "fencing_token": 8})

    assert play(driver, "wait 1, worker w1") == "Attach second"


def test_attached_attempt_ends_a_service_time_later(driver: Driver) -> None:
    driver.profile("m", (1, 10.0), (2, 12.0))
    recover(driver, **RUNNING)

    play(driver, "wait 2, worker w1 credit_count=2")

    assert driver.dataplane.state.pools["m"].ends == [driver.now + 12.0]
    play(driver, "wait 10, finish r1")
    assert driver.dataplane.state.pools["m"].speed.slowdown == 1.0
