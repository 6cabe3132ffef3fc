"""Send every event at every stage of a request: expected effects, and none for every other pair."""

from collections.abc import Callable

import pytest

from pentimento.dataplane import effects, events
from pentimento.dataplane.events import FailureKind
from tests.unit.dataplane.bookkeeping import check_bookkeeping
from tests.unit.dataplane.driver import Driver, kinds, only

DEADLINE = 150.0


class Life:
    """Request r1 and worker w1 of one credit, with the `token` of the newest attempt."""

    def __init__(self, script: str) -> None:
        self.driver = Driver()
        self.token = 0
        for word in script.split(" > "):
            self.say(word)

    def say(self, word: str) -> str:
        """Send the event of a word; return the kinds of the effects."""
        said = WORDS[word](self)
        request = self.driver.dataplane.state.requests.get("r1")
        self.token = request.fencing_token if request else self.token
        check_bookkeeping(self.driver.dataplane.state)
        return " ".join(kind.__name__ for kind in kinds(said))


Word = Callable[[Life], list[effects.Effect]]


def worker(generation: int) -> Word:
    return lambda life: life.driver.worker(generation=generation)


def event(make: Callable[..., events.Event], *values: object) -> Word:
    """Send an event that names only the request."""
    return lambda life: life.driver.send(make("r1", *values))


def of_attempt(make: Callable[..., events.Event], *values: object) -> Word:
    """Send an event that names the newest attempt."""
    return lambda life: life.driver.send(make("r1", life.token, *values))


def broken(kind: type[effects.Effect]) -> Word:
    return lambda life: life.driver.send(events.EffectFailed("r1", kind.__name__, life.token))


def pass_deadline(life: Life) -> list[effects.Effect]:
    life.driver.now = DEADLINE
    return life.driver.send(events.TimePassed())


WORDS: dict[str, Word] = {
    "worker": worker(1),
    "restarted": worker(2),
    "worker lost": lambda life: life.driver.send(events.WorkerLost("w1", 1)),
    "arrive": lambda life: life.driver.arrive(deadline=DEADLINE),
    "accepted": event(events.AcceptPersisted),
    "not accepted": event(events.AcceptDropped),
    "routed": event(events.RouteResolved, "m", "d", 1.0),
    "journalled": of_attempt(events.AttemptPersisted),
    "refused": of_attempt(events.AttemptPersisted, False),
    "begun": of_attempt(events.AttemptStarted),
    "yielded": of_attempt(events.AttemptYielded),
    "finished": of_attempt(events.AttemptFinished),
    "scored": of_attempt(events.Scored, 0.9),
    "fatal": of_attempt(events.AttemptFailed, FailureKind.FATAL, "NAN_IN_LATENT", "step 3"),
    "stream broken": of_attempt(events.AttemptFailed, FailureKind.WORKER_LOST),
    "stopped": of_attempt(events.AttemptFailed, FailureKind.STOPPED),
    "late at worker": of_attempt(events.AttemptFailed, FailureKind.DEADLINE),
    "no credit": of_attempt(events.AttemptFailed, FailureKind.NO_CREDIT),
    "committed": of_attempt(events.ResultCommitted, True),
    "fenced": of_attempt(events.ResultCommitted, False),
    "store full": of_attempt(events.CommitFailed, "STORE_FULL", "no space"),
    "older committed": lambda life: life.driver.send(events.ResultCommitted("r1", life.token - 1, True)),
    "older store full": lambda life: life.driver.send(events.CommitFailed("r1", life.token - 1, "FULL", "m")),
    "cancel": event(events.CancelRequested),
    "client left": event(events.CancelRequested, True),
    "deadline": pass_deadline,
    "end written": event(events.EndPersisted, True),
    "end second": event(events.EndPersisted, False),
    **{f"broken {kind.__name__}": broken(kind) for kind in effects.EFFECTS},
}
STAGES = {
    "accepting": "worker > arrive",
    "routing": "worker > arrive > accepted",
    "queued": "arrive > accepted > routed",
    "starting": "worker > arrive > accepted > routed",
    "running": "worker > arrive > accepted > routed > journalled",
    "committing": "worker > arrive > accepted > routed > journalled > finished",
    "delivered": "worker > arrive > accepted > routed > journalled > finished > committed",
    "cancelled while accepting": "arrive > cancel",
    "cancelled while queued": "arrive > accepted > routed > cancel",
    "cancelled while starting": "worker > arrive > accepted > routed > cancel",
    "cancelled while running": "worker > arrive > accepted > routed > journalled > cancel",
    "cancelled": "worker > arrive > accepted > routed > journalled > cancel > end written",
    "lost while starting": "worker > arrive > accepted > routed > worker lost",
    "acceptance broken": "arrive > broken PersistAccepted",
    "start broken": "worker > arrive > accepted > routed > broken PersistAttempt > end written",
    "commit broken": "worker > arrive > accepted > routed > journalled > finished > broken CommitResult",
}
EXPECTED = {
    "accepting": {
        "accepted": "Announce ResolveRoute",
        "broken PersistAccepted": "PersistEnd",
    },
    "routing": {
        "routed": "PersistAttempt",
        "cancel": "PersistEnd",
        "client left": "PersistEnd",
        "deadline": "PersistEnd",
        "broken Announce": "PersistEnd",
        "broken ResolveRoute": "PersistEnd",
    },
    "queued": {
        "worker": "PersistAttempt",
        "restarted": "PersistAttempt",
        "cancel": "PersistEnd",
        "client left": "PersistEnd",
        "deadline": "PersistEnd",
        "broken Announce": "PersistEnd",
    },
    "starting": {
        "restarted": "StopAttempt PersistAttempt",
        "worker lost": "StopAttempt",
        "journalled": "Execute",
        "refused": "ReleaseGrant DeliverRecorded",
        "cancel": "PersistEnd",
        "client left": "PersistEnd",
        "deadline": "PersistEnd",
        "broken Announce": "PersistEnd",
        "broken PersistAttempt": "ReleaseGrant PersistEnd",
    },
    "running": {
        "restarted": "StopAttempt ReleaseGrant PersistAttempt",
        "worker lost": "StopAttempt ReleaseGrant",
        "finished": "CommitResult",
        "fatal": "ReleaseGrant PersistEnd",
        "stream broken": "ReleaseGrant",
        "stopped": "ReleaseGrant PersistAttempt",
        "late at worker": "ReleaseGrant PersistEnd",
        "no credit": "ReleaseGrant",
        "cancel": "StopAttempt PersistEnd",
        "client left": "StopAttempt PersistEnd",
        "deadline": "StopAttempt PersistEnd",
        "broken Announce": "StopAttempt PersistEnd",
        "broken Execute": "StopAttempt ReleaseGrant PersistEnd",
        "broken Attach": "StopAttempt ReleaseGrant PersistEnd",
    },
    "committing": {
        "committed": "Deliver CommitCacheEntries",
        "fenced": "ReleaseGrant DeliverRecorded",
        "store full": "ReleaseGrant PersistEnd",
        "broken CommitResult": "ReleaseGrant PersistEnd",
    },
    "delivered": {
        "broken Reject": "DeliverRecorded",
        "broken Deliver": "DeliverRecorded",
        "broken DeliverEnd": "DeliverRecorded",
    },
    "cancelled while accepting": {
        "accepted": "Announce PersistEnd",
        "broken PersistAccepted": "PersistEnd",
    },
    "cancelled while queued": {
        "end written": "DeliverEnd",
        "end second": "DeliverRecorded",
        "broken PersistEnd": "PersistEnd",
    },
    "cancelled while starting": {
        "restarted": "StopAttempt",
        "worker lost": "StopAttempt",
        "journalled": "ReleaseGrant",
        "refused": "ReleaseGrant",
        "end written": "DeliverEnd",
        "end second": "DeliverRecorded",
        "broken PersistAttempt": "ReleaseGrant",
        "broken PersistEnd": "PersistEnd",
    },
    "cancelled while running": {
        "restarted": "StopAttempt ReleaseGrant",
        "worker lost": "StopAttempt ReleaseGrant",
        "finished": "ReleaseGrant",
        "fatal": "ReleaseGrant",
        "stream broken": "ReleaseGrant",
        "stopped": "ReleaseGrant",
        "late at worker": "ReleaseGrant",
        "no credit": "ReleaseGrant",
        "end written": "DeliverEnd",
        "end second": "DeliverRecorded",
        "broken Execute": "StopAttempt ReleaseGrant",
        "broken Attach": "StopAttempt ReleaseGrant",
        "broken PersistEnd": "PersistEnd",
    },
    "cancelled": {
        "restarted": "StopAttempt ReleaseGrant",
        "worker lost": "StopAttempt ReleaseGrant",
        "finished": "ReleaseGrant",
        "fatal": "ReleaseGrant",
        "stream broken": "ReleaseGrant",
        "stopped": "ReleaseGrant",
        "late at worker": "ReleaseGrant",
        "no credit": "ReleaseGrant",
        "broken Reject": "DeliverRecorded",
        "broken Execute": "StopAttempt ReleaseGrant",
        "broken Attach": "StopAttempt ReleaseGrant",
        "broken Deliver": "DeliverRecorded",
        "broken DeliverEnd": "DeliverRecorded",
    },
    "lost while starting": {
        "worker": "PersistAttempt",
        "restarted": "PersistAttempt",
        "journalled": "ReleaseGrant",
        "refused": "ReleaseGrant",
        "cancel": "PersistEnd",
        "client left": "PersistEnd",
        "deadline": "PersistEnd",
        "broken Announce": "PersistEnd",
        "broken PersistAttempt": "ReleaseGrant PersistEnd",
    },
    "acceptance broken": {
        "end written": "DeliverEnd",
        "end second": "DeliverRecorded",
        "broken PersistEnd": "PersistEnd",
    },
    "start broken": {
        "broken Reject": "DeliverRecorded",
        "broken Deliver": "DeliverRecorded",
        "broken DeliverEnd": "DeliverRecorded",
    },
    "commit broken": {
        "end written": "DeliverEnd",
        "end second": "DeliverRecorded",
        "broken PersistEnd": "PersistEnd",
    },
}


def test_dataplane_every_event_has_expected_effects() -> None:
    faults = []
    for stage, script in STAGES.items():
        for word in WORDS:
            life = Life(script)
            if word == "arrive" and "r1" not in life.driver.dataplane.state.requests:
                continue  # an id is used once
            found, expected = life.say(word), EXPECTED[stage].get(word, "")
            if found != expected:
                faults.append(f"{stage}, {word}: {found or 'nothing'} instead of {expected or 'nothing'}")

    assert not faults


def test_wakeup_is_deadline_until_request_has_ended() -> None:
    assert [Life(STAGES[stage]).driver.dataplane.next_wakeup() for stage in ("queued", "delivered")] == [DEADLINE, None]


FAILED, EXPIRED, CANCELLED = effects.End.FAILED, effects.End.EXPIRED, effects.End.CANCELLED


@pytest.mark.parametrize(
    ("stage", "word", "end", "reason", "message"),
    [
        ("queued", "cancel", CANCELLED, "CANCELLED", ""),
        ("queued", "client left", CANCELLED, "CLIENT_LEFT", ""),
        ("queued", "deadline", EXPIRED, "DEADLINE_EXCEEDED", "--default-deadline-s of the frontdoor"),
        ("running", "late at worker", EXPIRED, "DEADLINE_EXCEEDED", ""),
        ("running", "fatal", FAILED, "NAN_IN_LATENT", "step 3"),
        ("running", "broken Execute", FAILED, "EFFECT_FAILED", ""),
        ("running", "broken Attach", FAILED, "EFFECT_FAILED", ""),
        ("starting", "broken PersistAttempt", FAILED, "EFFECT_FAILED", ""),
        ("routing", "broken Announce", FAILED, "EFFECT_FAILED", ""),
        ("routing", "broken ResolveRoute", FAILED, "EFFECT_FAILED", ""),
        ("committing", "store full", FAILED, "STORE_FULL", "no space"),
        ("committing", "broken CommitResult", FAILED, "EFFECT_FAILED", ""),
    ],
)
def test_end_journal_and_client_receive_same_reason(
    stage: str, word: str, end: effects.End, reason: str, message: str
) -> None:
    life = Life(STAGES[stage])

    journalled = only(effects.PersistEnd, WORDS[word](life))
    told = only(effects.DeliverEnd, life.driver.send(events.EndPersisted("r1", True)))

    assert (journalled.end, journalled.reason, told.end, told.reason) == (end, reason, end, reason)
    assert journalled.message == told.message
    assert message in told.message
    assert ("--default-deadline-s" in told.message) is (end is EXPIRED)
    # The worker serves the next request, and nothing is left of this one.
    life.driver.worker()
    life.driver.run("next")
    state = life.driver.dataplane.state
    assert set(state.requests) == {"next"}
    assert not state.peers and not state.unpersisted


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("running", "finished"),
        ("cancelled while running", "stopped"),
        ("starting", "broken PersistAttempt"),
    ],
)
def test_credit_returned_starts_waiting_request(script: str, word: str) -> None:
    life = Life(STAGES[script])
    assert effects.PersistAttempt not in kinds(life.driver.queue("r2"))

    assert only(effects.PersistAttempt, WORDS[word](life)).request_id == "r2"
