"""Effects that break down: what the dataplane is told instead of an answer."""

import pytest

from pentimento.dataplane import DataplaneSettings, effects, events
from pentimento.dataplane.defects import failure_of
from tests.unit.dataplane.driver import Driver, kinds, only


def fail(driver: Driver, effect: effects.Effect) -> list[effects.Effect]:
    return driver.send(failure_of(effect))


def assert_serves_another(driver: Driver) -> None:
    """The one worker there is has its credit back, and nothing is left of what broke down."""
    driver.run("next")
    state = driver.dataplane.state
    assert set(state.requests) == {"next"}
    assert len(state.attempt_workers) == len(state.workers["w1"].in_flight) == 1
    assert not state.peers and not state.unpersisted


def ended(driver: Driver, after: list[effects.Effect]) -> effects.DeliverEnd:
    """The journal has written the end, which is a defect's."""
    end = only(effects.PersistEnd, after)
    assert (end.end, end.reason) == (effects.End.FAILED, "EFFECT_FAILED")
    return only(effects.DeliverEnd, driver.send(events.EndPersisted(end.request_id, True)))


def test_the_event_names_the_request_the_kind_and_the_token() -> None:
    attempt = effects.PersistAttempt("r1", 1, 7, "w1")

    assert failure_of(attempt) == events.EffectFailed("r1", "PersistAttempt", 7)
    assert failure_of(effects.ResolveRoute("r1")) == events.EffectFailed("r1", "ResolveRoute", 0)
    assert failure_of(effects.Drained()).request_id == ""


def test_an_attempt_that_is_not_journalled_ends_its_request_and_gives_its_credit_back(driver: Driver) -> None:
    driver.worker()
    attempt = only(effects.PersistAttempt, driver.queue())

    after = fail(driver, attempt)

    assert kinds(after) == [effects.ReleaseGrant, effects.PersistEnd]
    assert ended(driver, after).reason == "EFFECT_FAILED"
    assert_serves_another(driver)


def test_its_credit_is_free_at_once_for_who_waits(driver: Driver) -> None:
    driver.worker()
    attempt = only(effects.PersistAttempt, driver.queue())
    driver.queue("r2")

    after = fail(driver, attempt)

    assert only(effects.PersistAttempt, after).request_id == "r2"


def test_a_late_word_of_the_broken_attempt_changes_nothing(driver: Driver) -> None:
    driver.worker()
    attempt = only(effects.PersistAttempt, driver.queue())
    ended(driver, fail(driver, attempt))

    assert driver.send(events.AttemptPersisted("r1", attempt.fencing_token)) == []
    assert fail(driver, attempt) == []


@pytest.mark.parametrize("kind", [effects.Execute, effects.Attach])
def test_an_attempt_that_nobody_follows_is_stopped_at_its_worker(driver: Driver, kind: type) -> None:
    driver.worker()
    token = driver.run().fencing_token

    after = driver.send(events.EffectFailed("r1", kind.__name__, token))

    assert kinds(after) == [effects.StopAttempt, effects.ReleaseGrant, effects.PersistEnd]
    ended(driver, after)
    assert_serves_another(driver)


def test_a_peer_that_was_not_told_is_free_again(driver: Driver) -> None:
    driver.worker("w1", pairable=True)
    driver.worker("w2", pairable=True)
    attempt = only(effects.PersistAttempt, driver.queue(pair=True))
    pair = only(effects.ReservePair, driver.send(events.AttemptPersisted("r1", attempt.fencing_token)))

    assert fail(driver, pair) == []

    workers = driver.dataplane.state.workers
    assert (len(workers[pair.worker_id].in_flight), len(workers[pair.peer_id].in_flight)) == (1, 0)


def test_a_broken_acceptance_ends_in_the_journal_should_it_be_there(driver: Driver) -> None:
    accept = only(effects.PersistAccepted, driver.arrive())

    after = fail(driver, accept)

    assert kinds(after) == [effects.PersistEnd]
    assert driver.send(events.AcceptPersisted("r1")) == []
    assert kinds(driver.send(events.EndPersisted("r1", False))) == [effects.DeliverRecorded]


@pytest.mark.parametrize("kind", ["Announce", "ResolveRoute"])
def test_a_request_without_its_announcement_or_route_ends(driver: Driver, kind: str) -> None:
    driver.arrive()
    driver.send(events.AcceptPersisted("r1"))

    ended(driver, driver.send(events.EffectFailed("r1", kind)))

    assert not driver.dataplane.state.requests


def test_a_route_that_failed_late_changes_nothing(driver: Driver) -> None:
    driver.worker()
    driver.run()

    assert driver.send(events.EffectFailed("r1", "ResolveRoute")) == []


def test_a_picture_that_nobody_could_score_counts_as_unscored() -> None:
    driver = Driver(DataplaneSettings(accept_unscored=True))
    driver.worker()
    token = driver.start(driver.queue(cascade=("m", "heavy"))).fencing_token
    score = only(effects.Score, driver.send(events.AttemptFinished("r1", token)))

    commit = only(effects.CommitResult, fail(driver, score))

    assert commit.degraded == "UNSCORED"


def test_a_later_stage_that_breaks_leaves_the_light_picture(driver: Driver) -> None:
    driver.worker()
    token = driver.start(driver.queue(cascade=("m", "heavy"))).fencing_token
    driver.send(events.AttemptFinished("r1", token))
    resolve = only(effects.ResolveRoute, driver.send(events.Scored("r1", token, 0.0)))

    commit = only(effects.CommitResult, fail(driver, resolve))

    assert (commit.picture_token, commit.degraded) == (token, "EFFECT_FAILED")


def test_a_commit_that_breaks_ends_the_request_unless_the_journal_has_it(driver: Driver) -> None:
    driver.worker()
    token = driver.run().fencing_token
    commit = only(effects.CommitResult, driver.send(events.AttemptFinished("r1", token)))

    after = fail(driver, commit)

    assert kinds(after) == [effects.ReleaseGrant, effects.PersistEnd]
    assert kinds(driver.send(events.EndPersisted("r1", False))) == [effects.DeliverRecorded]


def test_an_end_that_is_not_journalled_is_tried_again_and_then_told_without(driver: Driver) -> None:
    driver.worker()
    driver.run()
    end = only(effects.PersistEnd, driver.send(events.CancelRequested("r1")))

    for _ in range(3):
        assert fail(driver, end) == [end]
    (told,) = fail(driver, end)

    assert told == effects.DeliverEnd("r1", effects.End.CANCELLED, "CANCELLED", end.message)
    assert not driver.dataplane.state.requests


@pytest.mark.parametrize("kind", ["Deliver", "DeliverEnd", "Reject"])
def test_an_answer_that_breaks_is_given_from_the_journal(driver: Driver, kind: str) -> None:
    assert driver.send(events.EffectFailed("r1", kind)) == [effects.DeliverRecorded("r1")]


@pytest.mark.parametrize(
    "kind",
    ["CommitCacheEntries", "ReleaseGrant", "PrepareRoute", "StopAttempt", "DeliverRecorded", "Drained"],
)
def test_what_no_request_waits_for_ends_none(driver: Driver, kind: str) -> None:
    driver.worker()
    token = driver.run().fencing_token

    assert driver.send(events.EffectFailed("r1", kind, token)) == []
    assert kinds(driver.send(events.AttemptFinished("r1", token))) == [effects.CommitResult]


def test_an_older_attempt_that_breaks_leaves_the_newer_one_alone(driver: Driver) -> None:
    driver.worker("w1")
    first = only(effects.PersistAttempt, driver.queue())
    driver.worker("w2")
    second = driver.start(driver.send(events.WorkerLost("w1", 1)))

    assert kinds(fail(driver, first)) == [effects.ReleaseGrant]
    assert kinds(driver.send(events.AttemptFinished("r1", second.fencing_token)))[0] is effects.CommitResult


def test_an_acceptance_that_breaks_after_its_answer_changes_nothing(driver: Driver) -> None:
    accept = only(effects.PersistAccepted, driver.arrive())
    driver.send(events.AcceptPersisted("r1"))

    assert fail(driver, accept) == []
    assert set(driver.dataplane.state.requests) == {"r1"}
