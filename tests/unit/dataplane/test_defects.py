"""Test effects that break down: the events that the dataplane receives in place of answers."""

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.endings import failure_of
from tests.unit.dataplane.driver import Driver, kinds, only


def fail(driver: Driver, effect: effects.Effect) -> list[effects.Effect]:
    return driver.send(failure_of(effect))


def test_the_event_names_the_request_the_kind_and_the_token() -> None:
    attempt = effects.PersistAttempt("r1", 1, 7, "w1")

    assert failure_of(attempt) == events.EffectFailed("r1", "PersistAttempt", 7)
    assert failure_of(effects.ResolveRoute("r1")) == events.EffectFailed("r1", "ResolveRoute", 0)
    assert failure_of(effects.Drained()).request_id == ""


def test_peer_without_reservation_is_free_again(driver: Driver) -> None:
    driver.worker("w1", pairable=True)
    driver.worker("w2", pairable=True)
    attempt = only(effects.PersistAttempt, driver.queue(pair=True))
    pair = only(effects.ReservePair, driver.send(events.AttemptPersisted("r1", attempt.fencing_token)))

    assert fail(driver, pair) == []

    workers = driver.dataplane.state.workers
    assert (len(workers[pair.worker_id].in_flight), len(workers[pair.peer_id].in_flight)) == (1, 0)


def test_image_without_score_counts_as_unscored() -> None:
    driver = Driver(DataplaneSettings(accept_unscored=True))
    driver.worker()
    token = driver.start(driver.queue(cascade=("m", "heavy"))).fencing_token
    score = only(effects.Score, driver.send(events.AttemptFinished("r1", token)))

    commit = only(effects.CommitResult, fail(driver, score))

    assert commit.degraded == "UNSCORED"


def test_failed_later_stage_leaves_light_image(driver: Driver) -> None:
    driver.worker()
    token = driver.start(driver.queue(cascade=("m", "heavy"))).fencing_token
    driver.send(events.AttemptFinished("r1", token))
    resolve = only(effects.ResolveRoute, driver.send(events.Scored("r1", token, 0.0)))

    commit = only(effects.CommitResult, fail(driver, resolve))

    assert (commit.picture_token, commit.degraded) == (token, "EFFECT_FAILED")


def test_end_that_is_not_journalled_is_retried_and_then_delivered(driver: Driver) -> None:
    driver.worker()
    driver.run()
    end = only(effects.PersistEnd, driver.send(events.CancelRequested("r1")))

    for _ in range(3):
        assert fail(driver, end) == [end]
    (told,) = fail(driver, end)

    assert told == effects.DeliverEnd("r1", effects.End.CANCELLED, "CANCELLED", end.message)
    assert not driver.dataplane.state.requests


def test_an_older_attempt_that_breaks_leaves_the_newer_one_alone(driver: Driver) -> None:
    driver.worker("w1")
    first = only(effects.PersistAttempt, driver.queue())
    driver.worker("w2")
    second = driver.start(driver.send(events.WorkerLost("w1", 1)))

    assert kinds(fail(driver, first)) == [effects.ReleaseGrant]
    assert kinds(driver.send(events.AttemptFinished("r1", second.fencing_token)))[0] is effects.CommitResult
