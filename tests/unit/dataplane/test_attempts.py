import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.events import FailureKind
from tests.unit.dataplane.driver import Driver, kinds, only


def test_a_lost_worker_leads_to_a_rerun_elsewhere_under_a_newer_token(driver: Driver) -> None:
    driver.worker("w1")
    first = driver.run()
    driver.worker("w2")

    after = driver.send(events.WorkerLost("w1", 1))

    second = only(effects.PersistAttempt, after)
    assert (second.worker_id, second.attempt_number) == ("w2", 2)
    assert second.fencing_token > first.fencing_token
    assert kinds(after) == [effects.StopAttempt, effects.ReleaseGrant, effects.PersistAttempt]


def test_a_broken_stream_counts_like_a_lost_worker(driver: Driver) -> None:
    driver.worker("w1")
    first = driver.run()
    driver.worker("w2")

    after = driver.send(events.AttemptFailed("r1", first.fencing_token, FailureKind.WORKER_LOST))

    assert only(effects.PersistAttempt, after).worker_id == "w2"
    assert driver.send(events.WorkerLost("w1", 1)) == []


def test_the_worker_that_failed_is_not_asked_again_while_another_is_there(driver: Driver) -> None:
    driver.worker("w1")
    driver.worker("w2")
    first = driver.run("r1")
    other = "w2" if first.worker_id == "w1" else "w1"
    driver.run("keeps the other busy")

    after = driver.send(events.AttemptFailed("r1", first.fencing_token, FailureKind.WORKER_LOST))

    assert kinds(after) == [effects.ReleaseGrant]
    busy = driver.dataplane.state.requests["keeps the other busy"]
    freed = driver.send(events.AttemptFinished(busy.request_id, busy.fencing_token))
    assert only(effects.PersistAttempt, freed).worker_id == other


def test_the_only_worker_is_asked_again(driver: Driver) -> None:
    driver.worker("w1")
    first = driver.run()

    driver.send(events.AttemptFailed("r1", first.fencing_token, FailureKind.WORKER_LOST))

    assert only(effects.PersistAttempt, driver.worker("w1")).worker_id == "w1"


def test_a_restarted_worker_is_another_process(driver: Driver) -> None:
    driver.worker("w1", generation=1)
    driver.run()

    after = driver.worker("w1", generation=2)

    assert only(effects.PersistAttempt, after).attempt_number == 2


def test_at_most_two_reruns_follow_lost_workers(driver: Driver) -> None:
    driver.worker("spare", credit_count=0)
    driver.worker("w1", generation=1)
    driver.run()
    for generation in (2, 3):
        driver.start(driver.worker("w1", generation=generation))

    end = only(effects.PersistEnd, driver.worker("w1", generation=4))

    assert (end.end, end.reason) == (effects.End.FAILED, "WORKER_LOST")
    assert end.message == "3 workers were lost while they ran this request"


def test_who_could_not_be_painted_anywhere_hears_what_the_last_worker_said(driver: Driver) -> None:
    for name in ("w1", "w2", "w3", "w4"):
        driver.worker(name)
    run = driver.run()
    for _ in range(2):
        run = driver.start(driver.send(out_of_memory(run)))

    end = only(effects.PersistEnd, driver.send(out_of_memory(run)))

    said = "DEVICE_OUT_OF_MEMORY: no room for 4096 x 4096"
    assert end.message == f"3 workers were lost while they ran this request; the last said {said}"


def out_of_memory(run: effects.Execute) -> events.AttemptFailed:
    said = ("DEVICE_OUT_OF_MEMORY", "no room for 4096 x 4096")
    return events.AttemptFailed("r1", run.fencing_token, FailureKind.WORKER_LOST, *said)


def test_a_suspect_waits_for_a_second_worker_before_it_may_take_another_down() -> None:
    driver = Driver(DataplaneSettings(suspect_wait_s=10.0))
    for worker_id in ("w1", "w2", "w3"):
        driver.worker(worker_id)
    run = driver.run()
    run = driver.start(driver.send(events.WorkerLost(run.worker_id, 1)))

    held_back = driver.send(events.WorkerLost(run.worker_id, 1))

    assert effects.PersistAttempt not in kinds(held_back)
    assert effects.PersistAttempt in kinds(driver.queue("innocent"))
    assert only(effects.PersistAttempt, driver.worker(run.worker_id, generation=2)).request_id == "r1"


def test_a_suspect_does_not_wait_for_ever() -> None:
    driver = Driver(DataplaneSettings(suspect_losses=1, suspect_wait_s=10.0))
    driver.worker("w1")
    driver.worker("w2")
    run = driver.run()
    driver.send(events.WorkerLost(run.worker_id, 1))
    driver.now += 10.0

    assert only(effects.PersistAttempt, driver.send(events.TimePassed())).request_id == "r1"


@pytest.mark.parametrize("kind", [FailureKind.NOT_HELD, FailureKind.NO_CREDIT, FailureKind.GONE])
def test_a_mismatch_is_queued_again_without_counting(driver: Driver, kind: FailureKind) -> None:
    driver.worker()
    run = driver.run()
    for _ in range(5):
        failed = driver.send(events.AttemptFailed("r1", run.fencing_token, kind))
        run = driver.start([*failed, *driver.worker()])

    assert driver.dataplane.state.requests["r1"].losses == 0


@pytest.mark.parametrize(("journalled", "losses"), [(False, 0), (True, 1)])
def test_lost_worker_counts_once_attempt_was_journalled(driver: Driver, journalled: bool, losses: int) -> None:
    driver.worker("w1", credit_count=2)
    effect_list = driver.queue("r1")
    if journalled:
        driver.start(effect_list)

    driver.send(events.WorkerLost("w1", 1))

    assert driver.dataplane.state.requests["r1"].losses == losses


@pytest.mark.parametrize("order", [("begun", "waiting"), ("waiting", "begun")])
def test_what_waited_behind_another_attempt_is_not_to_blame(driver: Driver, order: tuple[str, str]) -> None:
    driver.worker("w1", credit_count=2)
    tokens = {name: driver.run(name).fencing_token for name in ("begun", "waiting")}
    driver.send(events.AttemptStarted("begun", tokens["begun"]))

    for name in order:
        driver.send(events.AttemptFailed(name, tokens[name], FailureKind.WORKER_LOST))

    requests = driver.dataplane.state.requests
    assert (requests["begun"].losses, requests["waiting"].losses) == (1, 0)


def test_nothing_goes_to_a_worker_that_broke_a_stream_before_its_next_word(driver: Driver) -> None:
    driver.worker("w1")
    run = driver.run("r1")
    driver.queue("r2")

    after = driver.send(events.AttemptFailed("r1", run.fencing_token, FailureKind.WORKER_LOST))

    assert kinds(after) == [effects.ReleaseGrant]


def test_a_late_result_of_a_silent_worker_is_ignored(driver: Driver) -> None:
    driver.worker("w1")
    stale = driver.run()
    driver.worker("w2")
    driver.start(driver.send(events.WorkerLost("w1", 1)))

    assert driver.send(events.AttemptFinished("r1", stale.fencing_token)) == []


def test_what_a_silent_worker_still_runs_takes_its_credit_when_it_is_back(driver: Driver) -> None:
    driver.worker("w1")
    stale = driver.run()
    driver.send(events.WorkerLost("w1", 1))

    returned = driver.worker("w1", running=frozenset({("r1", stale.fencing_token)}))
    assert kinds(returned) == [effects.StopAttempt]

    assert only(effects.PersistAttempt, driver.worker("w1")).attempt_number == 2


def test_a_repeated_word_of_the_journal_does_not_give_a_running_attempts_credit_away(driver: Driver) -> None:
    driver.worker()
    token = driver.run("r1").fencing_token
    driver.queue("r2")

    assert driver.send(events.AttemptPersisted("r1", token)) == []


def test_tokens_of_a_newer_epoch_are_newer() -> None:
    tokens = []
    for epoch in (1, 2):
        driver = Driver(epoch=epoch)
        driver.worker(credit_count=1)
        tokens.append(driver.run().fencing_token)

    assert tokens[1] > tokens[0] + 1000


@pytest.mark.parametrize("won", [True, False])
def test_what_the_journal_says_of_an_older_attempt_leaves_the_newer_alone(driver: Driver, won: bool) -> None:
    driver.worker("w1")
    older = only(effects.PersistAttempt, driver.queue())
    driver.send(events.WorkerLost("w1", 1))
    newer = only(effects.PersistAttempt, driver.worker("w2"))

    late = driver.send(events.AttemptPersisted("r1", older.fencing_token, won))

    assert late == [effects.ReleaseGrant("r1", older.fencing_token)]
    execute = only(effects.Execute, driver.send(events.AttemptPersisted("r1", newer.fencing_token, True)))
    assert execute.worker_id == "w2"


def test_a_request_that_was_lost_twice_goes_to_neither_of_the_two(driver: Driver) -> None:
    for name in ("w1", "w2"):
        driver.worker(name)
    first = driver.run()
    second = driver.start(driver.send(events.WorkerLost(first.worker_id, 1)))
    driver.send(events.AttemptStarted("r1", second.fencing_token))
    driver.send(events.WorkerLost(second.worker_id, 1))

    assert driver.dataplane.state.requests["r1"].excluded == {(first.worker_id, 1), (second.worker_id, 1)}
