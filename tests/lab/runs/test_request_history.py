"""Test which histories of an idempotency key are possible."""

from dataclasses import replace

from lab.runs.histories import Operation
from lab.runs.request_history import JournalEvent, broken_keys

ACCEPT = JournalEvent("key", "r1", "accept", "r1", 1.0)
START = JournalEvent("key", "r1", "start", 7, 2.0)
AGAIN = JournalEvent("key", "r1", "start", 9, 3.0)
COMMIT = JournalEvent("key", "r1", "commit", (7, "sha256:a"), 4.0)
CANCELLED = JournalEvent("key", "r1", "end", "cancelled", 4.0)
READ_AT_S = 10.0
TOLD = Operation("accepted", "r1", 0.5, 1.5)
RESULT = Operation("result", "sha256:a", 1.6, 4.5)


HISTORIES: dict[str, tuple[list[JournalEvent], list[Operation], bool]] = {
    "one image": ([ACCEPT, START, COMMIT], [TOLD, RESULT], True),
    "nothing": ([], [], True),
    "accepted and not durable": ([], [TOLD], False),
    "accepted before it was durable": ([ACCEPT], [Operation("accepted", "r1", 0.5, 0.9)], False),
    "accepted as another request": ([ACCEPT], [Operation("accepted", "r2", 0.5, 1.5)], False),
    "two requests under a key": ([ACCEPT, JournalEvent("key", "r2", "accept", "r2", 1.5)], [], False),
    "started and not accepted": ([START], [], False),
    "committed without an attempt": ([ACCEPT, COMMIT], [], False),
    "committed by an attempt before the newest": ([ACCEPT, START, AGAIN, COMMIT], [], False),
    "tokens that fall": ([ACCEPT, AGAIN, replace(START, at_s=4.0)], [], False),
    "committed twice": ([ACCEPT, START, COMMIT, COMMIT], [], False),
    "completed and cancelled": ([ACCEPT, START, COMMIT, CANCELLED], [], False),
    "started after the end": ([ACCEPT, CANCELLED, replace(START, at_s=5.0)], [], False),
    "image before its commit": ([ACCEPT, START, COMMIT], [Operation("result", "sha256:a", 1.6, 3.9)], False),
    "image of another digest": ([ACCEPT, START, COMMIT], [Operation("result", "sha256:b", 1.6, 4.5)], False),
    "image of a cancelled request": ([ACCEPT, CANCELLED], [RESULT], False),
    "cancelled": ([ACCEPT, CANCELLED], [Operation("state", "cancelled", 2.0, 5.0)], True),
    "runs": ([ACCEPT], [Operation("state", "running", 2.0, 5.0)], True),
    "runs after its image": ([ACCEPT, START, COMMIT], [RESULT, Operation("state", "running", 5.0, 5.1)], False),
    "cancelled later": ([ACCEPT, START, COMMIT], [RESULT, Operation("state", "cancelled", 5.0, 5.1)], False),
    "completed early": ([ACCEPT, START, COMMIT], [RESULT, Operation("state", "completed", 2.0, 2.1)], False),
}


def test_history_of_a_key_is_linearisable_or_not() -> None:
    possible = {
        what: not broken_keys(events, READ_AT_S, {"key": received}) for what, (events, received, _) in HISTORIES.items()
    }

    assert possible == {what: expected for what, (_, _, expected) in HISTORIES.items()}


def test_keys_are_checked_separately() -> None:
    other = [JournalEvent("other", "r2", "accept", "r2", 0.1), JournalEvent("other", "r2", "commit", (3, "x"), 0.2)]

    assert broken_keys([ACCEPT, START, COMMIT, *other], READ_AT_S, {"key": [TOLD, RESULT]}) == ["other"]


def test_changes_at_the_same_millisecond_are_no_contradiction() -> None:
    events = [ACCEPT, JournalEvent("key", "r1", "start", 7, 1.0), JournalEvent("key", "r1", "commit", (7, "a"), 1.0)]

    assert broken_keys(events, READ_AT_S, {}) == []
