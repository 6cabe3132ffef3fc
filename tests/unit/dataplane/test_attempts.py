"""Attempts end, are lost with their workers, and run again elsewhere under newer tokens."""

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.events import FailureKind
from tests.unit.dataplane.driver import Driver, kinds, only, play

SUSPECT = "worker w1, worker w2, worker w3, run r1, lose w1, journal r1, lose w2"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("worker w1, run r1, worker w2, lose w1", "StopAttempt r1, ReleaseGrant r1, r1 to w2"),
        ("worker w1, run r1, worker w2, fail r1 WORKER_LOST", "ReleaseGrant r1, r1 to w2"),
        ("worker w1, run r1, worker w2, fail r1 WORKER_LOST, lose w1", ""),
        ("worker w1, worker w2, run r1, run r2, fail r1 WORKER_LOST", "ReleaseGrant r1"),
        ("worker w1, worker w2, run r1, run r2, fail r1 WORKER_LOST, finish r2", "CommitResult r2, r1 to w2"),
        ("worker w1, run r1, fail r1 WORKER_LOST", "ReleaseGrant r1"),
        ("worker w1, run r1, fail r1 WORKER_LOST, worker w1", "r1 to w1"),
        ("worker w1, run r1, queue r2, fail r1 WORKER_LOST", "ReleaseGrant r1"),
        ("worker w1, run r1, worker w1 generation=2", "StopAttempt r1, ReleaseGrant r1, r1 to w1"),
        # It may crash a third worker: it waits for a second one, at most ten seconds.
        (SUSPECT, "StopAttempt r1, ReleaseGrant r1"),
        (f"{SUSPECT}, queue innocent", "innocent to w3"),
        (f"{SUSPECT}, queue innocent, worker w2 generation=2", "r1 to w2"),
        (f"{SUSPECT}, wait 9", ""),
        (f"{SUSPECT}, wait 10", "r1 to w3"),
        ("worker w1, run r1, queue r2, journal r1", ""),
    ],
)
def test_lost_or_failed_attempt_runs_again_elsewhere(script: str, said: str) -> None:
    assert play(Driver(DataplaneSettings(suspect_wait_s=10.0)), script) == said


def test_rerun_has_newer_token_and_number(driver: Driver) -> None:
    driver.worker("w1")
    first = driver.run()
    driver.worker("w2")

    second = only(effects.PersistAttempt, driver.send(events.WorkerLost("w1", 1)))

    assert (second.attempt_number, second.fencing_token > first.fencing_token) == (2, True)
    driver.send(events.AttemptPersisted("r1", second.fencing_token))
    assert driver.send(events.AttemptFinished("r1", first.fencing_token)) == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ((), ""),
        (
            ("DEVICE_OUT_OF_MEMORY", "no room for 4096 x 4096"),
            "; the last said DEVICE_OUT_OF_MEMORY: no room for 4096 x 4096",
        ),
    ],
)
def test_third_lost_worker_ends_request_with_last_reason(driver: Driver, said: tuple[str, ...], told: str) -> None:
    for name in ("w1", "w2", "w3", "w4"):
        driver.worker(name)
    run = driver.run()
    for _ in range(2):
        lost = events.AttemptFailed("r1", run.fencing_token, FailureKind.WORKER_LOST, *said)
        run = driver.start(driver.send(lost))

    end = only(
        effects.PersistEnd,
        driver.send(events.AttemptFailed("r1", run.fencing_token, FailureKind.WORKER_LOST, *said)),
    )

    assert (end.end, end.reason) == (effects.End.FAILED, "WORKER_LOST")
    assert end.message == f"3 workers were lost while they ran this request{told}"


@pytest.mark.parametrize("kind", [FailureKind.NOT_HELD, FailureKind.NO_CREDIT, FailureKind.GONE])
def test_a_mismatch_is_queued_again_without_counting(driver: Driver, kind: FailureKind) -> None:
    driver.worker()
    run = driver.run()
    for _ in range(5):
        failed = driver.send(events.AttemptFailed("r1", run.fencing_token, kind))
        run = driver.start([*failed, *driver.worker()])

    assert driver.dataplane.state.requests["r1"].losses == 0


@pytest.mark.parametrize(
    ("script", "losses"),
    [
        ("worker w1 credit_count=2, queue r1, lose w1", {"r1": 0}),
        ("worker w1 credit_count=2, run r1, lose w1", {"r1": 1}),
        # A begun attempt takes the blame, in either order.
        ("fail r1 WORKER_LOST, fail r2 WORKER_LOST", {"r1": 1, "r2": 0}),
        ("fail r2 WORKER_LOST, fail r1 WORKER_LOST", {"r1": 1, "r2": 0}),
    ],
)
def test_loss_counts_for_journalled_attempt_to_blame(driver: Driver, script: str, losses: dict[str, int]) -> None:
    both = "worker w1 credit_count=2, run r1, run r2, begin r1, " if len(losses) == 2 else ""

    play(driver, both + script)

    assert {name: driver.dataplane.state.requests[name].losses for name in losses} == losses


def test_running_attempt_of_silent_worker_takes_its_credit(driver: Driver) -> None:
    driver.worker("w1")
    stale = driver.run()
    driver.send(events.WorkerLost("w1", 1))

    returned = driver.worker("w1", running=frozenset({("r1", stale.fencing_token)}))

    assert kinds(returned) == [effects.StopAttempt]
    assert only(effects.PersistAttempt, driver.worker("w1")).attempt_number == 2


@pytest.mark.parametrize("won", [True, False])
def test_journals_answer_for_older_attempt_leaves_newer_one(driver: Driver, won: bool) -> None:
    driver.worker("w1")
    older = only(effects.PersistAttempt, driver.queue())
    driver.send(events.WorkerLost("w1", 1))
    newer = only(effects.PersistAttempt, driver.worker("w2"))

    late = driver.send(events.AttemptPersisted("r1", older.fencing_token, won))

    assert late == [effects.ReleaseGrant("r1", older.fencing_token)]
    execute = only(effects.Execute, driver.send(events.AttemptPersisted("r1", newer.fencing_token, True)))
    assert execute.worker_id == "w2"


def test_request_lost_twice_excludes_both_workers(driver: Driver) -> None:
    play(driver, "worker w1, worker w2, run r1, lose w1, journal r1, begin r1, lose w2")

    assert driver.dataplane.state.requests["r1"].excluded == {("w1", 1), ("w2", 1)}
